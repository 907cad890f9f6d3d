"""Many visits as one step of torch: the engine for a GPU, where a small model alone leaves most of it idle.

Visits gather until somebody wants a result; those with the same task then run together. FedELMY's visits are more than
one descent, objectives of one's own need not be written for several models at once, and some estimators do not train:
these visits run one after another, on the same torch.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edge_agent.training import objectives
from edge_agent.training.estimates import estimate_result
from edge_agent.training.handover import companions_of, memory_of, model_of
from edge_agent.training.reasons import reason_of
from edge_agent.training.trainer import visit_result
from edge_agent.training.work import Train, Trained
from fleet_sim.engines.engine import Outcome, brought, outcome_of, trains
from fleet_sim.engines.lockstep import VisitBatches, descend_together
from fleet_sim.engines.torch_graphs import TorchGraphs
from fleet_sim.engines.visit_trainer import VisitTrainer
from sojourn.errors import SojournError
from sojourn.node.machine import Did, DidNot
from sojourn.parts import Elmy, OwnObjective, Sgd
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import EpochResult, Prepared
    from edge_agent.training.work import Warm
    from fleet_sim.engines.engine import Network, Shards
    from sojourn.protocol.wire import Task
    from sojourn.store.blobs import BlobStore

    Named = Mapping[str, NDArray[np.float32]]

TOGETHER = 64
"""At most this many models are trained at once: more would take memory and give a GPU little."""


class BatchedEngine:
    """Trains visits that were started together as one step of torch after another."""

    def __init__(self, shards: Shards, network: Network, device: str = "cpu", together: int = TOGETHER) -> None:
        self._shards, self._together = shards, together
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
                groups.setdefault(ready.kind, []).append(ready)
        for group in groups.values():
            # Visits of about the same length together, so that few wait for the longest.
            group.sort(key=lambda ready: -len(ready.batches.order))
            for first in range(0, len(group), self._together):
                _train(group[first : first + self._together])

    def close(self) -> None:
        """Cancel the visits that wait."""
        for visit in self._waiting:
            visit.future.cancel()
        self._waiting.clear()

    def _ready(self, visit: _StartedVisit) -> _ReadyVisit | None:
        """The visit with its vectors and samples; None where it was done alone, or cannot be done."""
        work = visit.work
        if not isinstance(work, Train) or not _descends(work.visit.task):
            visit.future.set_result(
                self._trainer.train(self._shards, visit.device, visit.key, work, visit.blobs, visit.store.read)
            )
            return None
        try:
            prepared = self._trainer.prepare(self._shards, visit.device, work, visit.store.read)
            return _ReadyVisit.of(visit, work, prepared)
        except (SojournError, KeyError) as error:
            visit.future.set_result(Outcome(DidNot(visit.key, reason_of(error), str(error))))
            return None


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
    """A visit with its vectors, samples and batches: it can be trained."""

    waiting: _StartedVisit
    work: Train
    prepared: Prepared
    batches: VisitBatches
    start: NDArray[np.float32]
    received: Named
    memory: Named
    remembered: int
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)

    @classmethod
    def of(cls, waiting: _StartedVisit, work: Train, prepared: Prepared) -> _ReadyVisit:
        """Load what the visit brings and what the device remembers."""
        blobs, visit, spec = MemoryBlobs(), work.visit, prepared.kit.model
        for digest, data in waiting.blobs.items():
            blobs.put(data, digest)
        estimating = visit.task.kind == "estimate"
        batches = VisitBatches.of(prepared.samples, visit.task.training, visit.seed)
        received = {} if estimating else companions_of(visit, blobs, spec)
        memory, remembered = ({}, 0) if estimating else memory_of(work, blobs, spec)
        return cls(waiting, work, prepared, batches, model_of(visit, blobs, spec), received, memory, remembered, blobs)

    @property
    def kind(self) -> Any:
        """What visits that run together have in common."""
        task = self.work.visit.task
        names = tuple(sorted(self.received)), tuple(sorted(self.memory))
        return self.work.visit.kit.digest, msgspec.msgpack.encode(task), names

    def objective(self) -> Any:
        """What the visit follows; an estimation follows the plain loss."""
        task = self.work.visit.task
        return Sgd() if task.kind == "estimate" else task.objective

    def result(self, end: NDArray[np.float32], epochs: Sequence[EpochResult]) -> Trained:
        """What the device would report, as `edge_agent.training` makes it in `trainer` and `estimates`."""
        visit, start_and_end = self.work.visit, (self.start, end)
        if visit.task.kind == "estimate":
            return estimate_result(visit, self.blobs, self.prepared, start_and_end, epochs)
        objective = objectives.begin(visit.task.objective, self.start, self.received, self.memory)
        assert objective is not None  # noqa: S101  # the group was trained with it
        return visit_result(visit, self.blobs, self.prepared, start_and_end, objective, epochs, self.remembered)


def _descends(task: Task) -> bool:
    """Whether the visit is one descent along an objective that is written for several models at once."""
    return trains(task) and (task.kind == "estimate" or not isinstance(task.objective, Elmy | OwnObjective))


def _train(group: Sequence[_ReadyVisit]) -> None:
    """Train visits of one kind together, and set the outcome of each."""
    began, first = perf_counter(), group[0]
    graphs, training = first.prepared.graphs, first.work.visit.task.training
    assert isinstance(graphs, TorchGraphs)  # noqa: S101  # the trainer makes no others
    starts = graphs.tensor(np.stack([ready.start for ready in group]))
    received = {name: graphs.tensor(np.stack([ready.received[name] for ready in group])) for name in first.received}
    memory = {name: graphs.tensor(np.stack([ready.memory[name] for ready in group])) for name in first.memory}
    objective = objectives.begin(first.objective(), starts, received, memory)
    assert objective is not None  # noqa: S101  # all but FedELMY's and one's own are known
    batches = [ready.batches for ready in group]
    ends, epochs = descend_together(starts, objective, graphs, first.prepared.kit, batches, training)
    seconds = (perf_counter() - began) / len(group)
    for ready, end, passed in zip(group, ends, epochs, strict=True):
        _set_outcome(ready, end, passed, seconds)


def _set_outcome(ready: _ReadyVisit, end: NDArray[np.float32], epochs: Sequence[EpochResult], seconds: float) -> None:
    key = ready.waiting.key
    try:
        done = ready.result(end, epochs)
        event: Did | DidNot = Did(key, msgspec.structs.replace(done, metrics=done.metrics | {"seconds": seconds}))
    except SojournError as error:
        event = DidNot(key, reason_of(error), str(error))
    ready.waiting.future.set_result(outcome_of(event, ready.blobs))
