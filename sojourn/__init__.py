"""Sojourn: the model travels; the data stays."""

__version__ = "0.1.0"
WIRE = 1
