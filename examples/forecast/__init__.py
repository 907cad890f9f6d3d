"""The load of the next hours, by a GRU over the last two days: `python -m examples.forecast`."""
