"""What `sojourn simulate`, `compare`, `plan` and `data` do on a terminal."""
