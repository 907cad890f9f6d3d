"""Tracking of rounds as runs of MLflow and as scalars of TensorBoard, written by a separate process."""
