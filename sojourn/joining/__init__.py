"""Joining a fleet with a node's own keys: tokens, the protocol of the door, and the node's files."""
