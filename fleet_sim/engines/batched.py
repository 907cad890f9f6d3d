"""The batched engine for GPUs: torch steps the models of many visits together."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_agent.training import descent, objectives
from edge_agent.training.descent import Prepared
from edge_agent.training.messages import Train, Warm
from edge_agent.training.objectives import Objective
from edge_agent.training.visit_vectors import reason_of
from fleet_sim.engines.descents import Descent, descends
from fleet_sim.engines.engine import Network, Outcome, Shards, Spent, brought, outcome_of
from fleet_sim.engines.serial import VisitTrainer
from fleet_sim.engines.torch_graphs import TorchGraphs
from fleet_sim.engines.torch_place import is_out_of_memory
from sojourn.errors import SojournError
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.protocol.spec import Kit
from sojourn.randomness import noise
from sojourn.store.blobs import BlobStore
from sojourn.store.memory_blobs import MemoryBlobs

# Several descents run as one: at each step every visit takes its own batch, and torch steps all models together.
# Objectives and optimisers are the device's, on vectors of shape (B, P). Batches are padded to one width with samples
# of weight 0. A finished visit continues with batches of weight 0 until the longest one is finished; its result is
# taken at its own end.

WINDOW = 32 << 20
"""Maximum bytes of samples copied to torch's device at once."""


@dataclass(frozen=True)
class _Step:
    """The batches of one step, all of the same width."""

    x: Tensor
    y: Tensor
    weights: Tensor
    noise: list[Tensor]


def descend_together(
    starts: Tensor,
    objective: Objective,
    graphs: TorchGraphs,
    visits: Sequence[Descent],
) -> tuple[NDArray[np.float32], list[list[float]]]:
    """Return the final vector of each visit, and the loss of each of its steps."""
    kit, w, ends = visits[0].prepared.kit, starts.clone(), torch.empty_like(starts)
    optimiser = descent.begin(visits[0].work.visit.task.training)
    losses = []
    for step, now in enumerate(_steps(visits, kit, graphs)):

        def slope(at: Tensor, now: _Step = now) -> tuple[Tensor, Tensor]:
            return graphs.losses_and_gradients(at, now.x, now.y, now.weights, now.noise)

        loss, direction = objective.direction(w, slope)
        optimiser.move(w, direction)
        losses.append(loss)
        if done := [at for at, visit in enumerate(visits) if len(visit.order) == step + 1]:
            ends[done] = w[done]
    by_visit = torch.stack(losses, 1).cpu().numpy().astype(np.float64).tolist()
    return ends.cpu().numpy(), [of[: len(visit.order)] for visit, of in zip(visits, by_visit, strict=True)]


def _steps(visits: Sequence[Descent], kit: Kit, graphs: TorchGraphs) -> Iterator[_Step]:
    """Yield the batches of every step; those of several steps are copied at once, which costs as much as one."""
    count = max(len(visit.order) for visit in visits)
    width = max(len(index) for visit in visits for index in visit.order)
    size = len(visits) * width * prod(kit.input.shape) * np.dtype(kit.input.dtype).itemsize
    window = max(1, WINDOW // size)
    for first in range(0, count, window):
        yield from _window(visits, range(first, min(first + window, count)), kit, graphs)


def _window(visits: Sequence[Descent], steps: range, kit: Kit, graphs: TorchGraphs) -> Iterator[_Step]:
    """Return the batches of some steps for every visit; a finished visit repeats its last batch with weight 0."""
    order = [[visit.order[min(step, len(visit.order) - 1)] for step in steps] for visit in visits]
    widths = [max(map(len, indices)) for indices in zip(*order, strict=True)]
    width = max(widths)
    weights = np.zeros((len(steps), len(visits), width), np.float32)
    x = np.empty((len(steps), len(visits), width, *kit.input.shape), kit.input.dtype)
    target = kit.learns.target
    shape, dtype = (target.shape, target.dtype) if target else ((), "int64")
    y = np.empty((len(steps), len(visits), width, *shape), dtype)
    for at, (visit, indices) in enumerate(zip(visits, order, strict=True)):
        for place, (step, index) in enumerate(zip(steps, indices, strict=True)):
            if step < len(visit.order):
                weights[place, at, : len(index)] = 1.0 / len(index)
        # Pad with the visit's own samples, not zeros: zeros might give NaN where real samples do not, and NaN·0 is NaN.
        padded = np.concatenate([index if len(index) == width else np.resize(index, width) for index in indices])
        rows, labels = visit.samples.batch(padded, kit.input.dtype)
        x[:, at], y[:, at] = rows.reshape(x[:, at].shape), labels.reshape(y[:, at].shape)
    brought = [graphs.tensor(each) for each in (x, y, weights)]
    for place, step in enumerate(steps):
        inputs, labels_here, weighed = (each[place, :, : widths[place]] for each in brought)
        drawn = _noise(visits, step, [indices[place] for indices in order], kit, graphs)
        yield _Step(inputs, labels_here, weighed, drawn)


def _noise(
    visits: Sequence[Descent], step: int, indices: Sequence[NDArray[np.int64]], kit: Kit, graphs: TorchGraphs
) -> list[Tensor]:
    """Return the noise of one step, drawn for the real number of samples, so that it equals the noise on a device."""
    if not kit.noise:
        return []
    width = max(map(len, indices))
    drawn = [
        [_filled(each, width) for each in noise(visit.seed, step, len(index), kit.noise)]
        for visit, index in zip(visits, indices, strict=True)
    ]
    return [graphs.tensor(np.stack(each)) for each in zip(*drawn, strict=True)]


def _filled(drawn: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    return np.concatenate([drawn, np.zeros((width - len(drawn), *drawn.shape[1:]), np.float32)])


# Many visits run as one step of torch, because a small model alone leaves most of a GPU idle. Visits accumulate until a
# result is requested; those with the same task then run together. Visits that are not plain descents (`descents`) run
# sequentially with torch.

log = logging.getLogger(__name__)
MAX_GROUP = 64
"""Maximum number of models trained together; more would need memory and gain little on a GPU."""


class BatchedEngine:
    """Trains visits that were started together as common torch steps."""

    def __init__(self, shards: Shards, network: Network, device: str = "cpu", together: int = MAX_GROUP) -> None:
        self._shards, self._together, self.spent = shards, together, Spent()
        self._trainer = VisitTrainer(lambda kit, _threads: TorchGraphs(kit, network, device))
        self._waiting: list[_StartedVisit] = []

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Add the visit; it is trained when its result or another one is requested."""
        future = _LazyOutcome(self)
        self._waiting.append(_StartedVisit(future, device, key, work, brought(work, blobs), blobs))
        return future

    def run(self) -> None:
        """Train all waiting visits."""
        waiting, self._waiting = self._waiting, []
        groups: dict[Any, list[_ReadyVisit]] = {}
        for visit in waiting:
            if not visit.future.set_running_or_notify_cancel():
                continue
            ready = self._ready(visit)
            if ready:
                groups.setdefault(ready.descent.kind, []).append(ready)
        for group in groups.values():
            # Group visits of similar length, so that few wait for the longest.
            group.sort(key=lambda ready: -len(ready.descent.order))
            self._train_in_turn(group)

    def _train_in_turn(self, group: list[_ReadyVisit]) -> None:
        """Train visits of one kind, as many together as fit into memory."""
        while group:
            some = group[: self._together]
            try:
                _train(some)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if len(some) == 1:
                    some[0].waiting.fail(error)
                else:
                    self._together = len(some) // 2
                    log.warning(
                        "too little memory for %s visits at once: continuing with %s", len(some), self._together
                    )
                    continue
            except SojournError as error:
                for ready in some:
                    ready.waiting.fail(error)
            group = group[len(some) :]

    def close(self) -> None:
        """Cancel waiting visits."""
        for visit in self._waiting:
            visit.future.cancel()
        self._waiting.clear()

    def _ready(self, visit: _StartedVisit) -> _ReadyVisit | None:
        """Return the visit with its vectors and samples; None if it was trained alone or failed."""
        work = visit.work
        if isinstance(work, Train) and descends(work.visit.task):
            try:
                prepared = self._trainer.prepare(self._shards, visit.device, work, visit.store.read)
                if not prepared.kit.model.state:
                    return _ReadyVisit.of(visit, work, prepared)
            except (SojournError, KeyError) as error:
                visit.fail(error)
                return None
        outcome = self._trainer.train(self._shards, visit.device, visit.key, visit.work, visit.blobs, visit.store.read)
        visit.future.set_result(outcome)
        return None


class _LazyOutcome(Future[Outcome]):
    """A future whose engine trains only when a result is requested."""

    def __init__(self, engine: BatchedEngine) -> None:
        super().__init__()
        self._engine = engine

    def result(self, timeout: float | None = None) -> Outcome:
        """Return the outcome; train all waiting visits first if it is not available yet."""
        if not self.done():
            self._engine.run()
        return super().result(timeout)


@dataclass(frozen=True)
class _StartedVisit:
    """A started visit that is not trained yet."""

    future: Future[Outcome]
    device: str
    key: str
    work: Train | Warm
    blobs: Mapping[bytes, bytes]
    store: BlobStore

    def fail(self, error: Exception) -> None:
        """Set the outcome of a visit that cannot be trained."""
        self.future.set_result(Outcome(WorkFailed(self.key, reason_of(error), str(error))))


@dataclass(frozen=True)
class _ReadyVisit:
    """A waiting visit that is ready for training."""

    waiting: _StartedVisit
    descent: Descent

    @classmethod
    def of(cls, waiting: _StartedVisit, work: Train, prepared: Prepared) -> _ReadyVisit:
        """Return the visit with its own blobs in a separate store."""
        blobs = MemoryBlobs()
        for digest, data in waiting.blobs.items():
            blobs.put(data, digest)
        return cls(waiting, Descent.of(work, prepared, blobs))


def _train(group: Sequence[_ReadyVisit]) -> None:
    """Train visits of one kind together, and set the outcome of each."""
    began, descents = perf_counter(), [ready.descent for ready in group]
    graphs = descents[0].prepared.graphs
    assert isinstance(graphs, TorchGraphs)  # noqa: S101  # the trainer creates no others
    with graphs.place.work():
        ends, losses = _descend(descents, graphs)
    seconds = (perf_counter() - began) / len(group)
    for ready, end, by_step in zip(group, ends, losses, strict=True):
        _set_outcome(ready, end, by_step, seconds)


def _descend(group: Sequence[Descent], graphs: TorchGraphs) -> tuple[NDArray[np.float32], list[list[float]]]:
    """Return the final vectors of visits of one kind, and the losses of their steps."""
    first = group[0]
    starts = graphs.tensor(np.stack([descent.start for descent in group]))
    received = {name: graphs.tensor(np.stack([each.received[name] for each in group])) for name in first.received}
    memory = {name: graphs.tensor(np.stack([each.memory[name] for each in group])) for name in first.memory}
    objective = objectives.begin(first.objective, starts, received, memory)
    assert objective is not None  # noqa: S101  # FedELMY and custom objectives never get here
    return descend_together(starts, objective, graphs, group)


def _set_outcome(ready: _ReadyVisit, end: NDArray[np.float32], losses: Sequence[float], seconds: float) -> None:
    try:
        done = ready.descent.result(end, losses)
    except SojournError as error:
        ready.waiting.fail(error)
        return
    timed = msgspec.structs.replace(done, metrics=done.metrics | {"seconds": seconds})
    ready.waiting.future.set_result(outcome_of(WorkDone(ready.waiting.key, timed), ready.descent.blobs))
