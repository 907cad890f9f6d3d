"""The coordinator's state machine, which does no I/O, and the work that it requests."""
