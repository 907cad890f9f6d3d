"""Grouping devices into tours: one module for each arranger, and their shared code."""
