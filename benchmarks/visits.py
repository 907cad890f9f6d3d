"""Visits per second of an in-memory fleet without training cost: one round of VISIT, all devices once.

Run from the root, on one core: OMP_NUM_THREADS=1 python -m benchmarks.visits [--profile] [--repeats 3] [devices ...].
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.work import CoordinatorWorker
from coordinator.records import JobCompiled
from coordinator.rounds.preparing import PrepareJob
from edge_agent.agent import Agent
from edge_agent.training.messages import Train, Trained, Warm, Warmed
from edge_agent.training.objectives import NAMES
from fleet_sim.world.memory_fleet import CLOUD, MemoryFleet
from sojourn.data.source import DataSettings
from sojourn.links.memory import MemoryLink
from sojourn.model import vectors
from sojourn.node.machine import WorkDone, WorkEvent
from sojourn.node.workers import InlineWorkers
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, Probe, TensorSpec
from sojourn.protocol.task import ABILITIES
from sojourn.protocol.wire import Offer
from sojourn.randomness import generator
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from sojourn.links.memory import MemoryBroker
    from sojourn.node.node import Node
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

SIZES = (100, 1_000, 10_000)
PER_SITE = 100
PER_SET = 10
CLASSES = tuple(str(digit) for digit in range(10))
SPEC = ModelSpec((TensorSpec("w", (4, 10)), TensorSpec("b", (10,))))
KIT = pack_blob(Kit(SPEC, InputSpec((4,)), CLASSES, (), b"", b"", Probe(bytes(16), (0,), 0, 0.0, 0.0, (0,), (0.0,))))
OFFER = Offer("1", "simulated", "onnxruntime", 1, 0, NAMES, "simulated", (), ABILITIES)
JOB = """
name = "visits"
strategy = "visit"
rounds = 1
threads = 1
arranger.sets = {sets}
arranger.size = {size}
estimator.where = "device"
fleet.devices = {devices}
data.exemplars = "never-read.npz"
data.classes = {classes}
data.input = [4]
"""


def keep(data: bytes, blobs: BlobStore) -> Ref:
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    return ref


class GivenBench(CoordinatorWorker):
    """Workers that compile the job beforehand; all other work is unchanged."""

    def __init__(self, blobs: BlobStore) -> None:
        super().__init__(blobs)
        self._store = blobs

    def __call__(self, work: Any, notify: Any = None) -> Any:
        if isinstance(work, PrepareJob):
            start = vectors.save(self._store, np.zeros(SPEC.size, np.float32), "float32", SPEC)
            model = {"model": start}
            kit = keep(KIT, self._store)
            return JobCompiled(work.name, kit, model, model, None, None, "", start, len(CLASSES))
        return super().__call__(work, notify)


class ReadyTraining:
    """Workers with results trained beforehand."""

    def __init__(self, blobs: BlobStore, vector: NDArray[np.float32], signature: tuple[float, ...]) -> None:
        self._blobs = blobs
        self._data = vectors.encode(vector, "float32", SPEC)
        self._trained = Trained({"model": ref_of(self._data, "float32")}, 50, {"loss": 1.0, "steps": 2.0}, None, {})
        self._estimated = Trained({}, 50, {"loss": 1.0, "steps": 2.0}, signature, {})

    def start(self, key: str, work: Warm | Train, report: Callable[[WorkEvent], None]) -> None:
        if isinstance(work, Warm):
            report(WorkDone(key, Warmed(50)))
            return
        if work.visit.task.kind == "estimate":
            report(WorkDone(key, self._estimated))
            return
        self._blobs.put(self._data, self._trained.vectors["model"].digest)
        report(WorkDone(key, self._trained))

    def stop(self, key: str) -> None:
        pass

    def close(self) -> None:
        pass


class ReadyFleet(MemoryFleet):
    """A simulation with every role, link and message, without compiling, estimating and training."""

    def __init__(self, count: int) -> None:
        names = [f"device-{number:06}" for number in range(count)]
        draw = generator(1, "visits", count)
        rows = draw.dirichlet([0.1] * len(CLASSES), count).tolist()
        self._signatures = {name: tuple(row) for name, row in zip(names, rows, strict=True)}
        self._models = dict(zip(names, draw.normal(0, 1, (count, SPEC.size)).astype(np.float32), strict=True))
        sites = {f"site-{at // PER_SITE:04}": tuple(names[at : at + PER_SITE]) for at in range(0, count, PER_SITE)}
        super().__init__(dict.fromkeys(names, DataSettings(path="never-read.npz")), sites, direct=True)

    def _coordinator(self, broker: MemoryBroker) -> Node:
        link = MemoryLink(broker)
        return self._node(
            Coordinator(CLOUD),
            {"edge": link, "cloud": link},
            lambda store: InlineWorkers(GivenBench(store.blobs)),
        )

    def _agent(self, name: str, _data: DataSettings, broker: MemoryBroker) -> Node:
        model, signature = self._models[name], self._signatures[name]
        return self._node(
            Agent(name, OFFER), {"edge": MemoryLink(broker)}, lambda store: ReadyTraining(store.blobs, model, signature)
        )


def measured(count: int, profile: cProfile.Profile | None) -> tuple[float, float, float, int]:
    """Return seconds to start the fleet, seconds of the round, its CPU seconds, and its messages."""
    gc.collect()
    begun = time.perf_counter()
    fleet = ReadyFleet(count)
    coordinator = fleet.nodes[CLOUD].node.machine
    assert isinstance(coordinator, Coordinator)
    fleet.world.run(lambda: False, limit=5.0)
    assert coordinator.sites.count() == count
    fleet.submit(JOB.format(sets=count // PER_SET, size=PER_SET, devices=count, classes=list(CLASSES)))
    jobs = coordinator.state.jobs
    fleet.world.run(lambda: "visits" in jobs and len(jobs["visits"].signatures) == count)
    before = sum(node.node.packets for node in fleet.nodes.values())
    started, busy = time.perf_counter(), time.process_time()
    if profile:
        profile.enable()
    state = fleet.run("visits")
    if profile:
        profile.disable()
    ended, busy = time.perf_counter(), time.process_time() - busy
    if not state.history:
        raise SystemExit(f"{state.status}: {state.detail}")
    (report,) = state.history
    if (state.status, report.visits, report.lost) != ("done", count, 0) or set(state.visits.values()) != {1}:
        raise SystemExit(f"{state.status}: {report.visits} visits of {count}, {report.lost} lost; {state.detail}")
    if dropped := sum(sum(node.node.reception.dropped.values()) for node in fleet.nodes.values()):
        raise SystemExit(f"{dropped} messages were dropped")
    sent = sum(node.node.packets for node in fleet.nodes.values()) - before
    return started - begun, ended - started, busy, sent


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("devices", nargs="*", type=int, default=SIZES)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--profile", action="store_true", help="also print a profile")
    asked.add_argument("--sort", default="tottime")
    options = asked.parse_args()
    print(f"{'devices':>8} {'sites':>6} {'start s':>8} {'round s':>8} {'CPU s':>8} {'messages':>9} {'visits/s':>9}")
    for count in options.devices:
        profile = cProfile.Profile() if options.profile else None
        runs = [measured(count, profile) for _ in range(options.repeats)]
        start, seconds, busy = (statistics.median(run[part] for run in runs) for part in (0, 1, 2))
        sites = -(-count // PER_SITE)
        line = f"{count:8,} {sites:6} {start:8.2f} {seconds:8.2f} {busy:8.2f} {runs[0][3]:9,} {count / seconds:9,.0f}"
        print(line, flush=True)
        if profile:
            pstats.Stats(profile).sort_stats(options.sort).print_stats(45)


if __name__ == "__main__":
    main()
