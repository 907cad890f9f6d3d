"""Visits that are one descent each, made ready so that several can step at once.

FedELMY's visits are more than one descent, those of devices with a model of their own start elsewhere, objectives of
one's own need not be written for several models at once, those with a second stream have a graph of their own, and some
estimators do not train: these visits run one after another. So do those of models with state, for which a step is more
than a gradient, and a sample of no weight would count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.training import objectives
from edge_agent.training.class_shares import received_by
from edge_agent.training.descent import EpochResult, steps_of
from edge_agent.training.estimates import estimate_result, trains
from edge_agent.training.handover import memory_of, model_of
from edge_agent.training.trainer import visit_result
from sojourn.parts import Sgd
from sojourn.randomness import batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edge_agent.training.descent import Batches, Prepared
    from edge_agent.training.work import Train, Trained
    from sojourn.protocol.wire import Task
    from sojourn.store.blobs import BlobStore

    Named = Mapping[str, NDArray[np.float32]]


def descends(task: Task) -> bool:
    """Whether a visit is one descent along an objective that is written for several models at once."""
    return trains(task) and (task.kind == "estimate" or task.objective.one_descent)


@dataclass(frozen=True)
class Descent:
    """A visit with its vectors, its samples and the order in which it sees them. What it makes goes into `blobs`."""

    work: Train
    prepared: Prepared
    blobs: BlobStore
    start: NDArray[np.float32]
    received: Named
    memory: Named
    remembered: int
    order: list[NDArray[np.int64]]

    @classmethod
    def of(cls, work: Train, prepared: Prepared, blobs: BlobStore) -> Descent:
        """Load what the visit brings and what the device remembers, and draw its batches."""
        visit, spec, training = work.visit, prepared.kit.model, work.visit.task.training
        estimating = visit.task.kind == "estimate"
        received = {} if estimating else received_by(visit, blobs, prepared)
        memory, remembered = ({}, 0) if estimating else memory_of(work, blobs, spec)
        order = list(batches(visit.seed, len(prepared.samples), training.batch, training.epochs))
        return cls(work, prepared, blobs, model_of(visit, blobs, spec), received, memory, remembered, order)

    @property
    def kind(self) -> Any:
        """What visits that step at once have in common."""
        visit, names = self.work.visit, (tuple(sorted(self.received)), tuple(sorted(self.memory)))
        return visit.kit.digest, msgspec.msgpack.encode(visit.task), names

    @property
    def objective(self) -> Any:
        """What the visit follows; an estimation follows the plain loss."""
        task = self.work.visit.task
        return Sgd() if task.kind == "estimate" else task.objective

    @property
    def samples(self) -> Batches:
        """The device's samples."""
        return self.prepared.samples

    @property
    def seed(self) -> int:
        """What its batches and its noise are drawn from."""
        return self.work.visit.seed

    def result(self, end: NDArray[np.float32], losses: Sequence[float]) -> Trained:
        """What the device would report of this end and the losses of its steps."""
        visit, start_and_end, epochs = self.work.visit, (self.start, end), self._epochs(losses)
        if visit.task.kind == "estimate":
            return estimate_result(visit, self.blobs, self.prepared, start_and_end, epochs)
        objective = objectives.begin(visit.task.objective, self.start, self.received, self.memory)
        assert objective is not None  # noqa: S101  # it was trained with it
        return visit_result(visit, self.blobs, self.prepared, start_and_end, objective, epochs, self.remembered)

    def _epochs(self, losses: Sequence[float]) -> list[EpochResult]:
        """The mean loss of each epoch, as `edge_agent.training.descent` reports it."""
        per_epoch = steps_of(self.samples, self.work.visit.task.training)
        sizes = [len(index) * loss for index, loss in zip(self.order, losses, strict=True)]
        sums = [sum(sizes[first : first + per_epoch]) for first in range(0, len(sizes), per_epoch)]
        return [EpochResult(total / len(self.samples), per_epoch) for total in sums]
