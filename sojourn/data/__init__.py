"""Readers of labelled samples from NPZ files, CSV files and image folders, shared by all roles."""
