"""The coordinator's machine without I/O, and the work that it asks for."""
