"""Job files: what they may say, their data, and which parts fit together."""
