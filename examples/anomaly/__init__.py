"""Faults of machines, found by an autoencoder that has seen none: `python -m examples.anomaly`."""
