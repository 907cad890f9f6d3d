"""The wire protocol: topics, messages and their parts, envelopes, signatures, the spec of a model."""
