"""Prometheus metrics: the catalogue, snapshots of a running node, and the page that serves them."""
