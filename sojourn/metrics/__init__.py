"""Figures for Prometheus: what each role tells, how it is taken from a running node, and the page that serves it."""
