"""Many visits as one step of torch: the engine for a GPU, where a small model alone leaves most of it idle.

Visits gather until somebody wants a result; those with the same task then run together. What is no plain descent
(`descents`) runs one after another, on the same torch.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edge_agent.training import objectives
from edge_agent.training.reasons import reason_of
from edge_agent.training.work import Train
from fleet_sim.engines.descents import Descent, descends
from fleet_sim.engines.engine import Outcome, brought, outcome_of
from fleet_sim.engines.lockstep import descend_together
from fleet_sim.engines.spent import Spent
from fleet_sim.engines.torch_graphs import TorchGraphs
from fleet_sim.engines.torch_place import is_out_of_memory
from fleet_sim.engines.visit_trainer import VisitTrainer
from sojourn.errors import SojournError
from sojourn.node.machine import Did, DidNot
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import Prepared
    from edge_agent.training.work import Warm
    from fleet_sim.engines.engine import Network, Shards
    from sojourn.store.blobs import BlobStore

log = logging.getLogger(__name__)
TOGETHER = 64
"""At most this many models are trained at once: more would take memory and give a GPU little."""


class BatchedEngine:
    """Trains visits that were started together as one step of torch after another."""

    def __init__(self, shards: Shards, network: Network, device: str = "cpu", together: int = TOGETHER) -> None:
        self._shards, self._together, self.spent = shards, together, Spent()
        self._trainer = VisitTrainer(lambda kit, _threads: TorchGraphs(kit, network, device))
        self._waiting: list[_StartedVisit] = []

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Note the visit; it is trained when somebody asks for this result or for another one."""
        future = _LazyOutcome(self)
        self._waiting.append(_StartedVisit(future, device, key, work, brought(work, blobs), blobs))
        return future

    def run(self) -> None:
        """Train all that wait."""
        waiting, self._waiting = self._waiting, []
        groups: dict[Any, list[_ReadyVisit]] = {}
        for visit in waiting:
            if not visit.future.set_running_or_notify_cancel():
                continue
            ready = self._ready(visit)
            if ready:
                groups.setdefault(ready.descent.kind, []).append(ready)
        for group in groups.values():
            # Visits of about the same length together, so that few wait for the longest.
            group.sort(key=lambda ready: -len(ready.descent.order))
            self._train_in_turn(group)

    def _train_in_turn(self, group: list[_ReadyVisit]) -> None:
        """Train visits of one kind, as many together as memory allows."""
        while group:
            some = group[: self._together]
            try:
                _train(some)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if len(some) == 1:
                    _fail(some, error)
                else:
                    self._together = len(some) // 2
                    log.warning("too little memory for %s visits at once: %s from now on", len(some), self._together)
                    continue
            except SojournError as error:
                _fail(some, error)
            group = group[len(some) :]

    def close(self) -> None:
        """Cancel the visits that wait."""
        for visit in self._waiting:
            visit.future.cancel()
        self._waiting.clear()

    def _ready(self, visit: _StartedVisit) -> _ReadyVisit | None:
        """The visit with its vectors and samples; None where it was done alone, or cannot be done."""
        work = visit.work
        if not isinstance(work, Train) or not descends(work.visit.task):
            self._train_alone(visit)
            return None
        try:
            prepared = self._trainer.prepare(self._shards, visit.device, work, visit.store.read)
            if not prepared.kit.model.state:
                return _ReadyVisit.of(visit, work, prepared)
        except (SojournError, KeyError) as error:
            visit.future.set_result(Outcome(DidNot(visit.key, reason_of(error), str(error))))
            return None
        self._train_alone(visit)
        return None

    def _train_alone(self, visit: _StartedVisit) -> None:
        outcome = self._trainer.train(self._shards, visit.device, visit.key, visit.work, visit.blobs, visit.store.read)
        visit.future.set_result(outcome)


class _LazyOutcome(Future[Outcome]):
    """A future whose engine trains only when somebody asks for a result."""

    def __init__(self, engine: BatchedEngine) -> None:
        super().__init__()
        self._engine = engine

    def result(self, timeout: float | None = None) -> Outcome:
        """The outcome; the engine trains all that wait if it is not there yet."""
        if not self.done():
            self._engine.run()
        return super().result(timeout)


@dataclass(frozen=True)
class _StartedVisit:
    """A visit that was started and is not trained yet."""

    future: Future[Outcome]
    device: str
    key: str
    work: Train | Warm
    blobs: Mapping[bytes, bytes]
    store: BlobStore


@dataclass(frozen=True)
class _ReadyVisit:
    """A visit that waits, and can be trained."""

    waiting: _StartedVisit
    descent: Descent

    @classmethod
    def of(cls, waiting: _StartedVisit, work: Train, prepared: Prepared) -> _ReadyVisit:
        """With what it brings in a store of its own."""
        blobs = MemoryBlobs()
        for digest, data in waiting.blobs.items():
            blobs.put(data, digest)
        return cls(waiting, Descent.of(work, prepared, blobs))


def _train(group: Sequence[_ReadyVisit]) -> None:
    """Train visits of one kind together, and set the outcome of each."""
    began, descents = perf_counter(), [ready.descent for ready in group]
    graphs = descents[0].prepared.graphs
    assert isinstance(graphs, TorchGraphs)  # noqa: S101  # the trainer makes no others
    with graphs.place.work():
        ends, losses = _descend(descents, graphs)
    seconds = (perf_counter() - began) / len(group)
    for ready, end, by_step in zip(group, ends, losses, strict=True):
        _set_outcome(ready, end, by_step, seconds)


def _descend(group: Sequence[Descent], graphs: TorchGraphs) -> tuple[NDArray[np.float32], list[list[float]]]:
    """The vectors with which visits of one kind end, and the losses of their steps."""
    first = group[0]
    starts = graphs.tensor(np.stack([descent.start for descent in group]))
    received = {name: graphs.tensor(np.stack([each.received[name] for each in group])) for name in first.received}
    memory = {name: graphs.tensor(np.stack([each.memory[name] for each in group])) for name in first.memory}
    objective = objectives.begin(first.objective, starts, received, memory)
    assert objective is not None  # noqa: S101  # all but FedELMY's and one's own are known
    return descend_together(starts, objective, graphs, group)


def _fail(group: Sequence[_ReadyVisit], error: Exception) -> None:
    for ready in group:
        ready.waiting.future.set_result(Outcome(DidNot(ready.waiting.key, reason_of(error), str(error))))


def _set_outcome(ready: _ReadyVisit, end: NDArray[np.float32], losses: Sequence[float], seconds: float) -> None:
    key = ready.waiting.key
    try:
        done = ready.descent.result(end, losses)
        event: Did | DidNot = Did(key, msgspec.structs.replace(done, metrics=done.metrics | {"seconds": seconds}))
    except SojournError as error:
        event = DidNot(key, reason_of(error), str(error))
    ready.waiting.future.set_result(outcome_of(event, ready.descent.blobs))
