"""How well a model answers on labelled samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.exemplars import Exemplars
    from sojourn.graphs import Graphs

BATCH = 256


def accuracy_and_loss(graphs: Graphs, vector: NDArray[np.float32], samples: Exemplars) -> tuple[float, float]:
    """The share of right answers and the mean cross-entropy."""
    x, y = samples.arrays()
    right, loss = 0, 0.0
    for at in range(0, len(y), BATCH):
        labels = y[at : at + BATCH]
        logits = graphs.logits(vector, x[at : at + BATCH]).astype(np.float64)
        right += int((logits.argmax(axis=1) == labels).sum())
        shifted = logits - logits.max(axis=1, keepdims=True)
        loss += float((np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]).sum())
    return right / len(y), loss / len(y)
