"""Prepares visits that consist of one descent, so that several can step at once.

Other visits run sequentially: FedELMY's visits have several descents; devices with local models have other start
vectors; custom objectives need not support several models; visits with a second stream have their own graph; and some
estimators do not train. Models with state are sequential, too: their steps are more than gradients, and samples of
weight 0 would count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from edge_agent.training import objectives
from edge_agent.training.descent import Batches, EpochResult, Prepared, steps_of
from edge_agent.training.estimates import estimate_result, trains
from edge_agent.training.messages import Train, Trained
from edge_agent.training.trainer import received_by, visit_result
from edge_agent.training.visit_vectors import memory_of, model_of
from sojourn.parts import Sgd
from sojourn.protocol.wire import Task
from sojourn.randomness import batches
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Named = Mapping[str, NDArray[np.float32]]


def descends(task: Task) -> bool:
    """Return whether a visit is one descent along an objective that supports several models at once."""
    return trains(task) and (task.kind == "estimate" or task.objective.one_descent)


@dataclass(frozen=True)
class Descent:
    """A visit with its vectors, its samples and their order; its results go into `blobs`."""

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
        """Load the visit's blobs and the device's saved state, and draw its batches."""
        visit, spec, training = work.visit, prepared.kit.model, work.visit.task.training
        estimating = visit.task.kind == "estimate"
        received = {} if estimating else received_by(visit, blobs, prepared)
        memory, remembered = ({}, 0) if estimating else memory_of(work, blobs, spec)
        order = list(batches(visit.seed, len(prepared.samples), training.batch, training.epochs))
        return cls(work, prepared, blobs, model_of(visit, blobs, spec), received, memory, remembered, order)

    @property
    def kind(self) -> Any:
        """The properties that visits must share to step together."""
        visit, names = self.work.visit, (tuple(sorted(self.received)), tuple(sorted(self.memory)))
        return visit.kit.digest, msgspec.msgpack.encode(visit.task), names

    @property
    def objective(self) -> Any:
        """The objective of the visit; an estimation uses the plain loss."""
        task = self.work.visit.task
        return Sgd() if task.kind == "estimate" else task.objective

    @property
    def samples(self) -> Batches:
        """The device's samples."""
        return self.prepared.samples

    @property
    def seed(self) -> int:
        """The seed of its batches and its noise."""
        return self.work.visit.seed

    def result(self, end: NDArray[np.float32], losses: Sequence[float]) -> Trained:
        """Return the device's report for this final vector and the losses of its steps."""
        visit, start_and_end, epochs = self.work.visit, (self.start, end), self._epochs(losses)
        if visit.task.kind == "estimate":
            return estimate_result(visit, self.blobs, self.prepared, start_and_end, epochs)
        objective = objectives.begin(visit.task.objective, self.start, self.received, self.memory)
        assert objective is not None  # noqa: S101  # the visit was trained with it
        return visit_result(visit, self.blobs, self.prepared, start_and_end, objective, epochs, self.remembered)

    def _epochs(self, losses: Sequence[float]) -> list[EpochResult]:
        """Return the mean loss of each epoch, as `edge_agent.training.descent` reports it."""
        per_epoch = steps_of(self.samples, self.work.visit.task.training)
        sizes = [len(index) * loss for index, loss in zip(self.order, losses, strict=True)]
        sums = [sum(sizes[first : first + per_epoch]) for first in range(0, len(sizes), per_epoch)]
        return [EpochResult(total / len(self.samples), per_epoch) for total in sums]
