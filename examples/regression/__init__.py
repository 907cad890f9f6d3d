"""Prices of houses, where each device knows one range of them: `python -m examples.regression`."""
