"""How well a model answers on labelled samples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars
    from sojourn.model.graphs import Graphs

BATCH = 256


def accuracy_and_loss(
    graphs: Graphs, vector: NDArray[np.float32], samples: Exemplars, *, cores: int = 1
) -> tuple[float, float]:
    """The share of right answers and the mean cross-entropy; the same numbers on however many cores."""
    x, y = samples.packed()

    def score(at: int) -> tuple[int, float]:
        labels = y[at : at + BATCH]
        logits = graphs.logits(vector, samples.unpacked(x[at : at + BATCH])).astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        loss = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
        return int((logits.argmax(axis=1) == labels).sum()), float(loss.sum())

    starts = range(0, len(y), BATCH)
    if cores > 1 and len(starts) > 1:
        with ThreadPoolExecutor(cores) as pool:
            scores = list(pool.map(score, starts))
    else:
        scores = [score(at) for at in starts]
    return sum(right for right, _ in scores) / len(y), sum(loss for _, loss in scores) / len(y)
