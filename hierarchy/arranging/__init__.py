"""Which devices form which tours: one file for each arranger, and what they share."""
