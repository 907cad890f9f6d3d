"""Sojourn: the model travels; the data stays."""

import os

__version__ = "0.14.0"
WIRE = 2

# onnxruntime 1.31 for Linux sends telemetry over the network and writes into the home folder, unless this is set
# before it is loaded.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
