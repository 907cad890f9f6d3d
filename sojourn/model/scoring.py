"""How well a model answers on samples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from sojourn.model.metrics import added, figures, tallied

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from numpy.typing import NDArray

    from sojourn.model.exemplars import Exemplars
    from sojourn.model.graphs import Graphs
    from sojourn.model.metrics import Tally

    T = TypeVar("T")

BATCH = 256


KEPT = 256 << 20
"""Bytes of features that are kept of samples; of more the trunk is run each time."""


class ScoredSamples:
    """Samples that models of one kit are scored on again and again: read once, as compact as they are.

    With a kit that has a trunk they go through it once.
    """

    def __init__(self, samples: Exemplars, graphs: Graphs, *, cores: int = 1) -> None:
        self.x, self.y = samples.packed()
        self.compared, self.faulty = samples.compared(), samples.marked()
        self._unpacked, self._graphs, self._seen = samples.unpacked, graphs, False
        if graphs.cuts and len(self.y) and len(self.y) * self.taken(slice(0, 1)).nbytes <= KEPT:
            starts = range(0, len(self.y), BATCH)
            self.x = np.concatenate(_each(lambda at: self.taken(slice(at, at + BATCH)), starts, cores))
            self._seen = True

    def taken(self, rows: slice) -> NDArray[np.generic]:
        """Some of the samples as the graphs take them."""
        return self.x[rows] if self._seen else self._graphs.features(self._unpacked(self.x[rows]))

    def batch(self, rows: slice) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Some of the samples as the graphs take them, and what they are compared with."""
        return self.taken(rows), self.compared[rows]


def accuracy_and_loss(
    graphs: Graphs, vector: NDArray[np.float32], samples: ScoredSamples, *, cores: int = 1
) -> tuple[float, float]:
    """The share of right answers and the mean cross-entropy; the same numbers on however many cores."""
    y = samples.y

    def score(at: int) -> tuple[int, float]:
        labels = y[at : at + BATCH]
        logits = graphs.logits(vector, samples.taken(slice(at, at + BATCH))).astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        loss = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
        return int((logits.argmax(axis=1) == labels).sum()), float(loss.sum())

    scores = _each(score, range(0, len(y), BATCH), cores)
    return sum(right for right, _ in scores) / len(y), sum(loss for _, loss in scores) / len(y)


def figures_of(
    graphs: Graphs, vector: NDArray[np.float32], samples: ScoredSamples, *, cores: int = 1
) -> dict[str, float]:
    """All figures of a kit's task, the main one first; the same numbers on however many cores."""
    kind = graphs.learns.kind

    def tally(at: int) -> Tally:
        rows = slice(at, at + BATCH)
        x, y = samples.batch(rows)
        outputs, faulty = graphs.outputs(vector, x), samples.faulty
        losses = graphs.losses(vector, x, y)
        compared = x if kind == "reconstruction" else y
        return tallied(kind, outputs, compared, losses, None if faulty is None else faulty[rows])

    with np.errstate(over="ignore", invalid="ignore"):  # a model that has diverged has figures that say so
        return figures(kind, reduce(added, _each(tally, range(0, len(samples.y), BATCH), cores)))


def _each(of: Callable[[int], T], starts: range, cores: int) -> list[T]:
    if cores > 1 and len(starts) > 1:
        with ThreadPoolExecutor(cores) as pool:
            return list(pool.map(of, starts))
    return [of(at) for at in starts]
