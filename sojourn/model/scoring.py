"""Evaluation of models on samples, and joint predictions of several models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sojourn.model.metrics import Tally, added, cross_entropies, metrics, softmax, tallied

if TYPE_CHECKING:
    from sojourn.model.exemplars import Exemplars
    from sojourn.model.graphs import Graphs

    T = TypeVar("T")


BATCH = 256


MAX_CACHED = 256 << 20
"""Maximum bytes of cached features; if samples need more, the trunk runs for every batch."""


class ScoredSamples:
    """Samples for repeated evaluation of models of one kit, loaded once in their compact type.

    With a trunk, the features are computed once.
    """

    def __init__(self, samples: Exemplars, graphs: Graphs, *, cores: int = 1) -> None:
        self.x, self.y = samples.packed()
        self.compared, self.faulty = samples.expected(), samples.faulty_mask()
        self._unpacked, self._graphs, self._cached = samples.unpacked, graphs, False
        if graphs.has_trunk and len(self.y) and len(self.y) * self.inputs(slice(0, 1)).nbytes <= MAX_CACHED:
            starts = range(0, len(self.y), BATCH)
            self.x = np.concatenate(_each(lambda at: self.inputs(slice(at, at + BATCH)), starts, cores))
            self._cached = True

    def inputs(self, rows: slice) -> NDArray[np.generic]:
        """Return the graph inputs of some of the samples."""
        return self.x[rows] if self._cached else self._graphs.features(self._unpacked(self.x[rows]))

    def batch(self, rows: slice) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the graph inputs and the targets of some of the samples."""
        return self.inputs(rows), self.compared[rows]


class Scored(Protocol):
    """Samples for evaluation, available in batches."""

    @property
    def y(self) -> NDArray[Any]:
        """The class or stratum of each sample."""

    @property
    def faulty(self) -> NDArray[np.bool_] | None:
        """Which samples are known anomalies, or None if unknown."""

    def batch(self, rows: slice) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        """Return the graph inputs and the targets of some of the samples."""


class Scores(NamedTuple):
    """A model's accuracy (NaN if the task has none), mean loss and other metrics."""

    accuracy: float
    loss: float
    metrics: dict[str, float]


def scores_of(graphs: Graphs, vector: NDArray[np.float32], samples: Scored, *, cores: int = 1) -> Scores:
    """Return the scores of a model; the result does not depend on the number of cores."""
    found = metrics_of(graphs, vector, samples, cores=cores)
    accuracy, loss = found.pop("accuracy", nan), found.pop("loss", nan)
    return Scores(accuracy, loss, found)


def metrics_of(graphs: Graphs, vector: NDArray[np.float32], samples: Scored, *, cores: int = 1) -> dict[str, float]:
    """Return all metrics of a kit's task, the main one first; the result does not depend on the number of cores."""
    kind = graphs.learns.kind

    def tally(at: int) -> Tally:
        rows = slice(at, at + BATCH)
        x, y = samples.batch(rows)
        outputs, faulty = graphs.outputs(vector, x), samples.faulty
        losses = graphs.losses(vector, x, y) if graphs.task else cross_entropies(outputs, samples.y[rows])
        compared = x if kind == "reconstruction" else y
        return tallied(kind, outputs, compared, losses, None if faulty is None else faulty[rows])

    with np.errstate(over="ignore", invalid="ignore"):  # a diverged model has infinite or NaN metrics
        return metrics(kind, reduce(added, _each(tally, range(0, len(samples.y), BATCH), cores)))


def _each(of: Callable[[int], T], starts: range, cores: int) -> list[T]:
    if cores > 1 and len(starts) > 1:
        with ThreadPoolExecutor(cores) as pool:
            return list(pool.map(of, starts))
    return [of(at) for at in starts]


def probabilities(graphs: Graphs, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return a model's probabilities for each sample: of its classes, and of the unknown class if it has one."""
    ask = graphs.votes if graphs.has_unknown else graphs.outputs
    return softmax(np.concatenate([ask(vector, x[at : at + BATCH]) for at in range(0, len(x), BATCH)]))


def votes_of(predicted: Sequence[NDArray[np.float64]], most: int = 0, *, unknown: bool = True) -> NDArray[np.float64]:
    """Return the sum of the models' probabilities over the known classes.

    most: at most this many models vote on a sample, those with the lowest probability of the unknown class; 0 for all.
    """
    each = np.stack(predicted)
    if not unknown:
        return np.asarray(each.sum(0))
    if most and most < len(each):
        rank = each[:, :, -1].argsort(0, kind="stable").argsort(0, kind="stable")
        each = np.where((rank < most)[:, :, None], each, 0.0)
    found: NDArray[np.float64] = each[:, :, :-1].sum(0)
    return found
