"""Faults of machines, found by an autoencoder trained on healthy data: `python -m examples.anomaly`."""
