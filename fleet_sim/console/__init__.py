"""The terminal commands `sojourn simulate`, `compare`, `plan` and `data`."""
