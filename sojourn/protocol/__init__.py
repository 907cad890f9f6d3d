"""What travels: topics, messages and what they are made of, envelopes, signatures, the spec of a model."""
