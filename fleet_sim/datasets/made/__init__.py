"""Data sets that are made here, by name and without files: one or more for every kind of task.

The same seed gives the same samples. Each file says what its samples are, and how they may be split so that devices
differ.
"""
