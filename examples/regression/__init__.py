"""Prices of houses, where each device has one range of them: `python -m examples.regression`."""
