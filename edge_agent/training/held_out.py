"""Splits a device's samples into training, validation and test parts, and measures a model on a held-out part.

The split depends only on the number of samples, so that a later visit holds out the same samples and does not evaluate
on samples that an earlier visit trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sojourn.model.scoring import BATCH, metrics_of
from sojourn.parts.part import held_out
from sojourn.protocol.limits import MAX_NUMBER
from sojourn.protocol.metric_names import MAIN, OWN
from sojourn.randomness import generator

if TYPE_CHECKING:
    from edge_agent.training.descent import Batches, Prepared


@dataclass(frozen=True)
class SampleSubset:
    """A subset of the samples, without a copy."""

    whole: Batches
    rows: NDArray[np.int64]

    @property
    def y(self) -> NDArray[Any]:
        """The target of every sample."""
        return self.whole.y[self.rows]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.rows)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return the inputs, as the graph takes them, and the targets of the samples with these indices."""
        return self.whole.batch(self.rows[index], dtype)


@dataclass(frozen=True)
class SampleParts:
    """A device's samples in three parts: for training, for choosing between models, and for testing."""

    training: Batches
    validation: Batches | None
    test: Batches | None


def parted(samples: Batches, validation: float, test: float = 0.0) -> SampleParts:
    """Split the samples; if no sample would be left to train on, all of them are for training."""
    choosing, testing = held_out(len(samples), validation, test)
    if not choosing + testing:
        return SampleParts(samples, None, None)
    order = generator(0, "validation", len(samples)).permutation(len(samples))
    cuts = np.split(order, [choosing, choosing + testing])
    some = [SampleSubset(samples, np.sort(rows)) if len(rows) else None for rows in cuts]
    return SampleParts(some[2] or samples, some[0], some[1])


class HeldOutSamples:
    """Samples that a model is scored on, in batches."""

    faulty = None

    def __init__(self, samples: Batches, dtype: str) -> None:
        self.y, self._samples, self._dtype = samples.y, samples, dtype

    def batch(self, rows: slice) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return a slice of the samples: inputs as the graphs take them, and targets."""
        return self._samples.batch(np.arange(*rows.indices(len(self.y))), self._dtype)


def own_metrics(
    prepared: Prepared, w: NDArray[np.float32], test: Batches | None, prefix: str = OWN
) -> dict[str, float]:
    """Return the task's main metric and the loss of a device's own model on its test part.

    Metrics that are not finite are left out, since a message cannot contain them; without a test part there are none.
    """
    if test is None:
        return {}
    found = metrics_of(prepared.graphs, w, HeldOutSamples(test, prepared.kit.input.dtype))
    measured = {prefix + name: found[name] for name in (MAIN[prepared.kit.learns.kind], "loss") if name in found}
    return {name: metric for name, metric in measured.items() if abs(metric) <= MAX_NUMBER}


def correct_predictions(prepared: Prepared, w: NDArray[np.float32], samples: Batches) -> int:
    """Return the number of samples that the model classifies correctly."""
    correct = 0
    for at in range(0, len(samples), BATCH):
        x, y = samples.batch(np.arange(at, min(at + BATCH, len(samples))), prepared.kit.input.dtype)
        correct += int((prepared.graphs.logits(w, x).argmax(axis=1) == y).sum())
    return correct


def accuracy(prepared: Prepared, w: NDArray[np.float32], samples: Batches | None) -> float:
    """Return the share of samples that the model classifies correctly; 0 without samples."""
    return correct_predictions(prepared, w, samples) / len(samples) if samples else 0.0
