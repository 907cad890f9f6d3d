"""How a device trains: the worker process, its work, and the arithmetic of a visit."""
