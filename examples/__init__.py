"""Examples that run with one command."""
