"""How programs on a device use the release that it serves."""
