"""Job files: their settings, their data, and whether their parts fit together."""
