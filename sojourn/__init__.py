"""Sojourn: the model travels; the data stays."""

import os

__version__ = "0.13.0"
WIRE = 2

# onnxruntime 1.31 for Linux reports to its makers, over the net and into the home folder, unless this is said
# before it is loaded. A device that keeps its data does not talk to strangers.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
