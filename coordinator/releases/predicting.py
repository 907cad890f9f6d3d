"""Runs a prediction graph as a device does: onnxruntime, one thread, `x` in and `logits` out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from sojourn.errors import ModelError
from sojourn.model.graphs import REFUSED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars

BATCH = 256
"""Rows at a time: the memory that a test set takes does not grow with it."""


class Predictor:
    """A prediction graph on this machine."""

    def __init__(self, graph: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # what goes wrong is in the error
        try:
            self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except REFUSED as error:
            raise ModelError(f"onnxruntime does not load the graph: {_first(error)}") from error

    def logits(self, x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The answers for some rows."""
        try:
            parts = [self._session.run(["logits"], {"x": x[at : at + BATCH]})[0] for at in range(0, len(x), BATCH)]
        except (*REFUSED, ValueError) as error:  # ValueError: there is no such input or output
            raise ModelError(f"onnxruntime does not run the graph: {_first(error)}") from error
        answers: NDArray[np.float32] = np.concatenate(parts)
        return answers

    def accuracy(self, samples: Exemplars) -> float:
        """The share of right answers."""
        x, y = samples.packed()
        starts = range(0, len(y), BATCH)
        batches = ((self.logits(samples.unpacked(x[at : at + BATCH])), y[at : at + BATCH]) for at in starts)
        return sum(int((logits.argmax(axis=1) == labels).sum()) for logits, labels in batches) / len(y)


def _first(error: Exception) -> str:
    """The beginning of what onnxruntime says: the rest is a list of addresses."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
