"""How well a model answers on samples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from sojourn.model.metrics import added, cross_entropies, figures, tallied

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


class Scored(Protocol):
    """Samples that models are scored on, to be had in batches."""

    @property
    def y(self) -> NDArray[Any]:
        """The class of each sample, or what stands for it."""

    @property
    def faulty(self) -> NDArray[np.bool_] | None:
        """Which samples are known to be anomalies, where that is known."""

    def batch(self, rows: slice) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Some of the samples as the graphs take them, and what they are compared with."""


class Scores(NamedTuple):
    """How good a model is: the share of right answers (NaN where a task has none), the mean loss, other figures."""

    accuracy: float
    loss: float
    figures: dict[str, float]


def scores_of(graphs: Graphs, vector: NDArray[np.float32], samples: Scored, *, cores: int = 1) -> Scores:
    """All that is told of a model; the same numbers on however many cores."""
    found = figures_of(graphs, vector, samples, cores=cores)
    accuracy, loss = found.pop("accuracy", nan), found.pop("loss", nan)
    return Scores(accuracy, loss, found)


def figures_of(graphs: Graphs, vector: NDArray[np.float32], samples: Scored, *, cores: int = 1) -> dict[str, float]:
    """All figures of a kit's task, the main one first; the same numbers on however many cores."""
    kind = graphs.learns.kind

    def tally(at: int) -> Tally:
        rows = slice(at, at + BATCH)
        x, y = samples.batch(rows)
        outputs, faulty = graphs.outputs(vector, x), samples.faulty
        losses = graphs.losses(vector, x, y) if graphs.task else cross_entropies(outputs, samples.y[rows])
        compared = x if kind == "reconstruction" else y
        return tallied(kind, outputs, compared, losses, None if faulty is None else faulty[rows])

    with np.errstate(over="ignore", invalid="ignore"):  # a model that has diverged has figures that say so
        return figures(kind, reduce(added, _each(tally, range(0, len(samples.y), BATCH), cores)))


def _each(of: Callable[[int], T], starts: range, cores: int) -> list[T]:
    if cores > 1 and len(starts) > 1:
        with ThreadPoolExecutor(cores) as pool:
            return list(pool.map(of, starts))
    return [of(at) for at in starts]
