"""Which of a device's samples are trained on, which are held out, and how good a model is on those.

What is held out depends on nothing but how many samples there are: a device that is visited again must hold out the
same ones, or it would judge models on samples that earlier visits have trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.model.scoring import BATCH, figures_of
from sojourn.parts.objective_part import held_out
from sojourn.protocol.figure_names import MAIN, OWN
from sojourn.protocol.limits import MOST_FIGURE
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge_agent.training.descent import Batches, Prepared


@dataclass(frozen=True)
class SampleSubset:
    """Some of the samples; they are not copied."""

    whole: Batches
    rows: NDArray[np.int64]

    @property
    def y(self) -> NDArray[Any]:
        """What every sample is compared with."""
        return self.whole.y[self.rows]

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.rows)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """The samples with these numbers as the graph takes them, and what they are compared with."""
        return self.whole.batch(self.rows[index], dtype)


@dataclass(frozen=True)
class SampleParts:
    """A device's samples: those that are trained on, those that choose between models, and those that test one."""

    learnt: Batches
    validation: Batches | None
    test: Batches | None


def parted(samples: Batches, validation: float, test: float = 0.0) -> SampleParts:
    """The samples in their parts; where nothing would be left to train on, all of them are trained on."""
    choosing, testing = held_out(len(samples), validation, test)
    if not choosing + testing:
        return SampleParts(samples, None, None)
    order = generator(0, "validation", len(samples)).permutation(len(samples))
    cuts = np.split(order, [choosing, choosing + testing])
    some = [SampleSubset(samples, np.sort(rows)) if len(rows) else None for rows in cuts]
    return SampleParts(some[2] or samples, some[0], some[1])


class HeldOutSamples:
    """Samples that a model is scored on, a batch at a time."""

    faulty = None

    def __init__(self, samples: Batches, dtype: str) -> None:
        self.y, self._samples, self._dtype = samples.y, samples, dtype

    def batch(self, rows: slice) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Some of the samples as the graphs take them, and what they are compared with."""
        return self._samples.batch(np.arange(*rows.indices(len(self.y))), self._dtype)


def own_figures(
    prepared: Prepared, w: NDArray[np.float32], test: Batches | None, begins: str = OWN
) -> dict[str, float]:
    """How good a device's own model is on its test part: the main figure of the task and the loss, by name.

    Nothing where no samples are held out, or a figure is not finite: no message holds such a one.
    """
    if test is None:
        return {}
    found = figures_of(prepared.graphs, w, HeldOutSamples(test, prepared.kit.input.dtype))
    told = {begins + name: found[name] for name in (MAIN[prepared.kit.learns.kind], "loss") if name in found}
    return {name: figure for name, figure in told.items() if abs(figure) <= MOST_FIGURE}


def right_answers(prepared: Prepared, w: NDArray[np.float32], asked: Batches) -> int:
    """How many of some samples the model gets right."""
    right = 0
    for at in range(0, len(asked), BATCH):
        x, y = asked.batch(np.arange(at, min(at + BATCH, len(asked))), prepared.kit.input.dtype)
        right += int((prepared.graphs.logits(w, x).argmax(axis=1) == y).sum())
    return right


def share_right(prepared: Prepared, w: NDArray[np.float32], asked: Batches | None) -> float:
    """The share of some samples that the model gets right; 0 where there are none to ask."""
    return right_answers(prepared, w, asked) / len(asked) if asked else 0.0
