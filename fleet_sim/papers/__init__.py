"""Reproduces tables of papers from their folders: `sojourn papers`."""
