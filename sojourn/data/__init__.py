"""Labelled samples from NPZ files, CSV files and image folders: device, coordinator and simulation read alike."""
