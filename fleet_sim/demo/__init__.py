"""A whole fleet on this machine as real processes, with one command."""
