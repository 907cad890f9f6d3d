"""Training on a device: the worker process, its messages, and the computation of a visit."""
