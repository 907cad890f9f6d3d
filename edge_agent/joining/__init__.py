"""How a device joins a fleet with a token, and keeps its certificate good."""
