"""Inference on a device: how local programs use the served release."""
