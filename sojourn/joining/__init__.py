"""How a node joins a fleet with keys of its own: tokens, what is asked at the door, and what a node keeps of it."""
