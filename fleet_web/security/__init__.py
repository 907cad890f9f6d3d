"""Authentication and network exposure of the pages."""
