"""Persistence of a node: the journal, blobs, and atomic file writes."""
