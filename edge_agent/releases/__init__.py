"""Releases on a device: verifies signed orders, and fetches, tries and serves the ordered versions."""
