"""Rounds as runs of MLflow and as scalars of TensorBoard, written by a process of its own."""
