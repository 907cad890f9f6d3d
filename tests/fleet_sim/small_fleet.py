"""A small fleet on scikit-learn's digits: compiled once, trained once for each distinct visit, and counted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from coordinator.jobs.data import digits_split
from coordinator.jobs.settings import read_job
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_models import BEST_ONLY
from coordinator.machine.work import CoordinatorWorker
from coordinator.records import JobCompiled, RoundPlanned
from coordinator.rounds.preparing import KitCache, PrepareJob, first_vectors, prepare
from edge_agent.agent import Agent
from edge_agent.records import VisitTrained
from edge_agent.training.messages import Train, Trained, Warm, Warmed
from edge_agent.training.objectives import NAMES
from edge_agent.training.trainer import Trainer, attempt
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from hierarchy.edge.records import VisitKept
from sojourn.data.source import DataSettings
from sojourn.links.memory import MemoryLink
from sojourn.model import vectors
from sojourn.model.graphs import Graphs
from sojourn.node.machine import WorkDone, WorkEvent, WorkFailed, WorkProgress
from sojourn.node.workers import InlineWorkers
from sojourn.parts import TwoStreamPart
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.wire import Offer
from sojourn.store.memory_blobs import MemoryBlobs
from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from coordinator.job_state import JobState
    from coordinator.jobs.settings import JobSettings
    from sojourn.links.memory import Faults, MemoryBroker
    from sojourn.node.node import Node
    from sojourn.parts import Part
    from sojourn.store.blobs import BlobStore

SHARES = ("class-counts", "projections")
OWN_GRAPHS = ("ma-echo", "fedov", "fedgen")
"""Strategies whose kits have special graphs."""
TRAINING = 2.0
"""Virtual seconds of a visit."""
_FOLDER = TemporaryDirectory(prefix="sojourn-shards-")
_PLAIN = {
    "model.name": "mlp",
    "model.options.hidden": [8],
    "data.test": "digits",
    "data.exemplars_per_class": 3,
    "threads": 1,
    "rounds": 2,
    "training.batch": 16,
    "training.lr": 0.2,
}


def job(name: str = "job", **changes: Any) -> str:
    """Return a job file; `__` in a name stands for a dot, None omits a setting."""
    values = {"name": name, **_PLAIN, **{key.replace("__", "."): value for key, value in changes.items()}}
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)


def fedavg(name: str = "job", **changes: Any) -> str:
    """Return a FedAvg job."""
    return job(name, strategy="fedavg", **changes)


def visit(name: str = "job", **changes: Any) -> str:
    """Return a VISIT job with short estimations."""
    plain = {"strategy": "visit", "estimator__epochs": 2, "arranger__sets": 2, "arranger__size": 2}
    return job(name, **(plain | changes))


@cache
def shards(count: int) -> dict[str, DataSettings]:
    """Return devices with two classes each and unequal numbers of samples."""
    x, y = digits_split(train=True)
    folder = Path(_FOLDER.name)
    found = {}
    for number in range(count):
        mine = np.flatnonzero((y == 2 * number % 10) | (y == (2 * number + 1) % 10))[: 30 + 10 * number]
        path = folder / f"{number}.npz"
        np.savez(path, x=x[mine], y=y[mine])
        found[f"dev-{number}"] = DataSettings(path=str(path))
    return found


@cache
def _compiled(objective: Part | None = None, strategy: str = "fedavg") -> tuple[JobCompiled, MemoryBlobs]:
    """Return the compiled model of all jobs; second streams and special graphs are compiled separately."""
    blobs = MemoryBlobs()
    settings = msgspec.to_builtins(objective) if objective else {}
    rounds = None if strategy in OWN_GRAPHS else 2
    changes = {f"objective__{key}": value for key, value in settings.items()}
    text = job("any", strategy=strategy, rounds=rounds, **changes)
    return prepare(PrepareJob("any", text), blobs, KitCache()), blobs


def _second_stream(settings: JobSettings) -> Part | None:
    objective = settings.parts().objective
    return objective.compiled if isinstance(objective, TwoStreamPart) else None


@cache
def graphs_once(kit: Kit, threads: int) -> Graphs:
    """Return the graphs of a kit, opened once for all coordinators: they keep no state."""
    return Graphs(kit, threads)


class OnceBench(CoordinatorWorker):
    """Compiles one model for all jobs: the seed changes what follows, not the initial model."""

    def __init__(self, blobs: BlobStore) -> None:
        super().__init__(blobs, make=graphs_once)
        self._mine = blobs

    def __call__(self, work: Any, notify: Any = None) -> Any:
        if not isinstance(work, PrepareJob):
            return super().__call__(work, notify)
        settings = read_job(work.text, work.name)
        own_graphs = settings.strategy if settings.strategy in OWN_GRAPHS else "fedavg"
        compiled, kept = _compiled(_second_stream(settings), own_graphs)
        for ref in (compiled.kit, compiled.exemplars, compiled.test):
            self._mine.put(kept.read(there(ref).digest), there(ref).digest)
        kit = unpack_blob(kept.read(compiled.kit.digest), Kit)
        initial = vectors.load(kept, compiled.vectors["model"], kit.model)
        held, wire_vectors = first_vectors(initial, settings, self._mine, kit)
        return msgspec.structs.replace(compiled, job=work.name, vectors=held, wire_vectors=wire_vectors)


@cache
def kit_of_jobs(objective: Part | None = None) -> Kit:
    """Return the common kit of all jobs; for a second stream, that of its objective."""
    compiled, kept = _compiled(objective)
    return unpack_blob(kept.read(compiled.kit.digest), Kit)


def initial_model(objective: Part | None = None) -> NDArray[np.float32]:
    """Return the initial model of every job."""
    compiled, kept = _compiled(objective)
    return vectors.load(kept, compiled.vectors["model"], kit_of_jobs(objective).model)


_OUTCOMES: dict[Any, tuple[WorkDone | WorkFailed, dict[bytes, bytes]]] = {}
_TRAINERS: dict[str, tuple[MemoryBlobs, Trainer]] = {}


def trained_once(key: str, work: Train, blobs: BlobStore, data: DataSettings) -> WorkDone | WorkFailed:
    """Return the trainer's outcome; training is a pure function of the visit, so it runs once per session."""
    it = work.visit
    named = tuple(sorted((name, ref.digest, ref.encoding, ref.delta) for name, ref in it.vectors.items()))
    kept = tuple(sorted((name, ref.digest) for name, ref in work.memory.items()))
    memo = (data.path, it.kit.digest, named, it.seed, it.earlier, msgspec.json.encode(it.task), kept, work.remembered)
    if memo not in _OUTCOMES:
        own, trainer = _TRAINERS.setdefault(data.path, _trainer(data))
        for ref in (it.kit, *it.vectors.values(), *work.memory.values()):
            own.put(blobs.read(ref.digest), ref.digest)
        outcome = attempt(key, work, trainer, lambda _step, _steps: None)
        made = outcome.outcome if isinstance(outcome, WorkDone) else None
        refs = [*made.vectors.values(), *made.memory.values()] if isinstance(made, Trained) else []
        _OUTCOMES[memo] = outcome, {ref.digest: own.read(ref.digest) for ref in refs}
    outcome, made_blobs = _OUTCOMES[memo]
    for digest, content in made_blobs.items():
        blobs.put(content, digest)
    return msgspec.structs.replace(outcome, key=key)


def _trainer(data: DataSettings) -> tuple[MemoryBlobs, Trainer]:
    own = MemoryBlobs()
    return own, Trainer(own, data)


@dataclass
class Ledger:
    """Counts the work of a fleet over all restarts of its nodes."""

    begun: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(device, visit with attempt): how often its training was started."""
    finished: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(site, tour, hop): how often a result was kept."""
    plans: list[RoundPlanned] = field(default_factory=list)
    """The training rounds as planned."""


Change = "Callable[[Train, Did | WorkFailed, BlobStore], Did | WorkFailed | None]"


class SlowTraining:
    """Trains in virtual time. `change` may replace or drop the outcome."""

    def __init__(self, fleet: SmallFleet, name: str, blobs: BlobStore) -> None:
        self._fleet, self._name, self._blobs = fleet, name, blobs
        self._wanted: dict[str, object] = {}

    def start(self, key: str, work: Warm | Train, report: Callable[[WorkEvent], None]) -> None:
        if isinstance(work, Warm):
            report(WorkDone(key, Warmed(1)))
            return
        self._fleet.ledger.begun[self._name, key] += 1
        self._wanted[key] = mark = object()
        outcome: WorkDone | WorkFailed | None = trained_once(key, work, self._blobs, self._fleet.devices[self._name])
        if change := self._fleet.changes.get(self._name):
            outcome = change(work, outcome, self._blobs)

        def report_wanted(event: WorkEvent | None) -> None:
            if event is not None and self._wanted.get(key) is mark:
                report(event)

        seconds = self._fleet.seconds
        self._fleet.world.later(seconds / 2, lambda: report_wanted(WorkProgress(key, 1, 2)))
        self._fleet.world.later(seconds, lambda: report_wanted(outcome))

    def stop(self, key: str) -> None:
        self._wanted.pop(key, None)

    def close(self) -> None:
        self._wanted.clear()


class SmallFleet(MemoryFleet):
    """A fleet whose training takes time, is counted, and can be manipulated."""

    def __init__(
        self,
        sites: Mapping[str, tuple[str, ...]],
        faults: Faults | None = None,
        *,
        one_broker: bool = False,
        seconds: float = TRAINING,
        objections: Mapping[str, Callable[[], Any]] | None = None,
        shy: tuple[str, ...] = (),
        also: tuple[str, ...] = (),
    ) -> None:
        """`shy` devices share no class counts; `also` are custom objectives that devices offer."""
        self.ledger = Ledger()
        self.changes: dict[str, Any] = {}
        self.objections = objections or {}
        self.seconds, self.shy, self.also = seconds, shy, also
        self.devices = shards(6)
        super().__init__(self.devices, sites, faults, one_broker=one_broker)

    def _coordinator(self, broker: MemoryBroker) -> Node:
        link = MemoryLink(broker)
        node = self._node(
            Coordinator(CLOUD, keep=BEST_ONLY),
            {"edge": link, "cloud": link},
            lambda store: InlineWorkers(OnceBench(store.blobs)),
        )
        node.on_record(self._planned)
        return node

    def _edge(self, name: str, site: MemoryBroker, cloud: MemoryBroker) -> Node:
        node = super()._edge(name, site, cloud)
        node.on_record(lambda record: self._kept(name, record))
        return node

    def _agent(self, name: str, data: DataSettings, broker: MemoryBroker) -> Node:
        shares = () if name in self.shy else SHARES
        offer = Offer(
            "1", "simulated", "onnxruntime", 1, 0, (*NAMES, *self.also), "simulated", shares, abilities=ABILITIES
        )
        agent = Agent(name, offer, objection=self.objections.get(name))
        node = self._node(agent, {"edge": MemoryLink(broker)}, lambda store: SlowTraining(self, name, store.blobs))
        node.on_record(lambda record: self._finished(name, record))
        return node

    def _planned(self, record: Any) -> None:
        if isinstance(record, RoundPlanned) and record.phase == "train":
            self.ledger.plans.append(record)

    def _finished(self, name: str, record: Any) -> None:
        if isinstance(record, VisitTrained):
            self.ledger.finished[name, str(record.answer.visit.attempt) + record.key] += 1

    def _kept(self, name: str, record: Any) -> None:
        if isinstance(record, VisitKept):
            self.ledger.kept[name, record.key, record.report.hop] += 1

    def model(self, name: str = "job") -> NDArray[np.float32]:
        """Return the coordinator's current model of the job."""
        return self.vector("model", name)

    def vector(self, vector: str, name: str = "job") -> NDArray[np.float32]:
        """Return one of the job's vectors at the coordinator."""
        blobs, state = self.stores[CLOUD].blobs, self.job(name)
        kit = unpack_blob(blobs.read(there(state.kit).digest), Kit)
        return vectors.load(blobs, state.vectors[vector], kit.model)


TWO_SITES = {"site-a": ("dev-0", "dev-1"), "site-b": ("dev-2", "dev-3")}


def run(text: str, sites: Mapping[str, tuple[str, ...]] | None = None, faults: Faults | None = None, **how: Any) -> Run:
    """Run one job in a new fleet to its end."""
    fleet = SmallFleet(sites or TWO_SITES, faults, **how)
    fleet.submit(text)
    state = fleet.run("job")
    return Run(fleet, state, fleet.model())


@dataclass
class Run:
    """A finished job and its fleet."""

    fleet: SmallFleet
    state: JobState
    model: NDArray[np.float32]
