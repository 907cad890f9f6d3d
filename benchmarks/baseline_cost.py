"""The cost of a visit of each newer baseline for a device, relative to FedAvg: memory, bytes, processor time.

A job of ten devices on digits runs in memory, and its last visit is recorded: the order with the model, further
vectors, and the memory of that device. A sandboxed training process, started like an agent's, then gets this order:
once in each of several new processes (`peak MB`, the highest resident memory, VmHWM; `first ms`, the processor time
from the process's start to the result), then repeatedly in the last one, all methods in turns (`visit ms`). There every
second visit has three times as many epochs; the difference is the cost of its steps (`step ms`). All are medians, and
ratios are those of each turn to FedAvg's.

python -m benchmarks.baseline_cost [--model wide] [--processes 5] [--turns 20]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from edge_agent.training.messages import Failure, Success, Train, Trained, WorkerSetup
from edge_agent.training.process import TrainingChild, WorkItem
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from sojourn.data.source import DataSettings
from sojourn.store.blobs import FolderBlobs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from edge_agent.training.messages import Warm
    from fleet_sim.engines.engine import Engine, Outcome
    from fleet_sim.settings import Simulation
    from fleet_sim.world.virtual_fleet import VirtualFleet
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

HEAD = (
    "peak MB", "more", "down KB", "up KB", "kit KB", "kept KB",
    "first ms", "steps", "visit ms", "ratio", "step ms", "ratio",
)  # fmt: skip
FLEET = """
threads = 1
training = { epochs = 5, batch = 16, lr = 0.01 }
gate = { on = false }
[simulation]
data = "digits"
devices = 10
sites = 1
reach = "all"
engine = "serial"
[split]
by = "iid"
"""
SMALL = 'model = { name = "cnn", options = { channels = [8, 16], hidden = 32 } }\n'
WIDE = 'model = { name = "cnn", options = { channels = [32, 64], hidden = 512 } }\n'
NORMED = 'model = { name = "benchmarks.papers.digits.normed_cnn:NormedCnn" }\n'
RING = 'strategy = "metafed"\nschedule = {{ trips = 2 }}\nobjective = {{ warmup = 1, threshold = {} }}\n'
UNSET, SET = RING.format(1.1), RING.format(-0.5)
"""MetaFed if no device sets its flag, and if every device does."""
ROUNDS = 'strategy = "{}"\nrounds = 3\n'


class Case(NamedTuple):
    """A method: its job file without model and fleet, and the model."""

    name: str
    job: str
    model: str = ""


def cases(model: str) -> list[Case]:
    """Return all methods on a model, and on one with BatchNorm those that differ there."""
    plain = [*(Case(name, ROUNDS.format(name)) for name in ("fedavg", "fedmmd", "moon"))]
    plain += [Case("moon, mu 0", f"{ROUNDS.format('moon')}objective = {{ mu = 0.0 }}\n")]
    plain += [Case(name, ROUNDS.format(name)) for name in ("fedfusion", "fedgen")]
    few = "finisher = { epochs = 1, steps = 1, images = 8, padding = 1 }\n"  # the coordinator's work is not measured
    plain += [Case("dense", f'strategy = "dense"\n{few}')]
    plain += [Case("ma-echo", 'strategy = "ma-echo"\nfinisher = { tau = 1 }\n')]
    plain += [Case("ma-echo, rank 8", 'strategy = "ma-echo"\nfinisher = { tau = 1 }\nobjective = { rank = 8 }\n')]
    plain += [Case("fedov", 'strategy = "fedov"\nfinisher = { epochs = 1 }\n')]
    plain += [Case("metafed, flag unset", UNSET), Case("metafed, flag set", SET)]
    normed = [Case("fedavg, BatchNorm", ROUNDS.format("fedavg")), Case("fedbn", ROUNDS.format("fedbn"))]
    unknown = NORMED.replace(" }", ", options = { classes = 11 } }")  # the last one is FedOV's own
    normed += [Case("fedov, BatchNorm", plain[9].job, unknown), Case("metafed, BatchNorm, set", SET)]
    return [each._replace(model=model) for each in plain] + [
        each._replace(model=each.model or NORMED) for each in normed
    ]


@dataclass
class Recorder:
    """An engine that keeps the last visit that continues from another device's model, with its blobs."""

    engine: Engine
    device: str = ""
    work: Train | None = None
    blobs: dict[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spent = self.engine.spent

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        # In MetaFed's last round devices train alone again; its ring is typical.
        if isinstance(work, Train) and getattr(work.visit.task.objective, "phase", "accumulate") == "accumulate":
            self.device, self.work = device, work
            refs = (work.visit.kit, *work.visit.vectors.values(), *work.memory.values())
            self.blobs = {ref.digest: blobs.read(ref.digest) for ref in refs}
        return self.engine.start(device, key, work, blobs)

    def close(self) -> None:
        self.engine.close()


class RecordedRun(SimulationRun):
    """A simulation that records its visits."""

    def _build_fleet(self, *how: Any) -> VirtualFleet:
        self.engine = self.recorder = Recorder(self.engine)
        return super()._build_fleet(*how)


def recorded(case: Case, folder: Path) -> tuple[Simulation, Recorder]:
    """Run a method's job and return the order of one of its devices."""
    simulation = read_simulation(f'name = "job"\nseed = 1\n{case.job}{case.model}{FLEET}', case.name)
    running = RecordedRun(simulation, folder)
    try:
        *_, last = running.courses()
    finally:
        running.close()
    if last.view.status != "done":
        raise SystemExit(f"{case.name}: {last.view.status}, {last.view.detail}")
    return simulation, running.recorder


class Device:
    """A device's folder with the data for one visit, and its training process."""

    def __init__(self, case: Case, folder: Path) -> None:
        simulation, found = recorded(case, folder / "simulation")
        if found.work is None:
            raise SystemExit(f"{case.name}: no device was visited")
        self.case, self.work, self._folder = case, found.work, folder
        data = load("digits")
        parts = split(simulation.split, data, simulation.fleet.devices, 1)
        rows = dict(zip(simulation.fleet.names, parts, strict=True))[found.device]
        np.savez(folder / "data.npz", x=data.x_train[rows], y=data.y_train[rows])
        blobs = FolderBlobs(folder / "blobs")
        for digest, content in found.blobs.items():
            blobs.put(content, digest)
        self._child: TrainingChild | None = None
        training = self.work.visit.task.training
        task = replace(self.work.visit.task, training=replace(training, epochs=3 * training.epochs))
        self._longer = replace(self.work, visit=replace(self.work.visit, task=task))
        self.peaks: list[float] = []
        self.firsts: list[float] = []
        self.visits: list[float] = []
        self.steps: list[float] = []

    def renew(self) -> None:
        """Start another process, run the visit, and record its peak memory."""
        self.end()
        setup = WorkerSetup(str(self._folder / "blobs"), DataSettings(path=str(self._folder / "data.npz")), 1)
        self._child = TrainingChild(setup, self._folder / "worker")
        self.done, _ = self._visit(self.work)
        self.firsts.append(_processor_seconds(self._child.process.pid))
        status = Path(f"/proc/{self._child.process.pid}/status").read_text()
        self.peaks.append(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1e3)

    def turn(self) -> None:
        """Train once with the given epochs and once longer, in a process that has trained before."""
        done, short = self._visit(self.work)
        more, long = self._visit(self._longer)
        self.visits.append(short)
        self.steps.append((long - short) / (more.metrics["steps"] - done.metrics["steps"]))

    def _visit(self, work: Train) -> tuple[Trained, float]:
        """Return the result of a visit and its processor time."""
        assert self._child
        before = _processor_seconds(self._child.process.pid)
        self._child.hand(WorkItem("visit", work, lambda _report: None))
        for frame in self._child.process.frames():
            if isinstance(frame, Failure):
                raise SystemExit(f"{self.case.name}: {frame.reason}: {frame.detail}")
            if isinstance(frame, Success) and isinstance(frame.outcome, Trained):
                return frame.outcome, _processor_seconds(self._child.process.pid) - before
        raise SystemExit(f"{self.case.name}: the training process ended: {' | '.join(self._child.process.last_lines)}")

    def end(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.process.close_input()
            self._child.process.reap()


def _processor_seconds(pid: int) -> float:
    """Return the time of all threads in nanoseconds, as counted by the scheduler."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9


def _kb(refs: Mapping[str, Ref]) -> float:
    return sum(ref.size for ref in refs.values()) / 1e3


def row(device: Device, plain: Device) -> str:
    """A method and the plain one on the same model."""
    done, visit, peak = device.done, device.work.visit, statistics.median(device.peaks)
    return (
        f"{device.case.name:24}{peak:9.1f}{peak - statistics.median(plain.peaks):+9.1f}{_kb(visit.vectors):9.1f}"
        f"{_kb(done.vectors):9.1f}{visit.kit.size / 1e3:9.1f}{_kb(done.memory):9.1f}"
        f"{1e3 * statistics.median(device.firsts):9.0f}{done.metrics['steps']:9.0f}"
        f"{1e3 * statistics.median(device.visits):9.1f}{_ratio(device.visits, plain.visits):9.2f}"
        f"{1e3 * statistics.median(device.steps):9.3f}{_ratio(device.steps, plain.steps):9.2f}"
    )


def _ratio(these: list[float], those: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(these, those, strict=True))


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["small", "wide"], default="small")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}; {given.processes} processes for memory, {given.turns} turns for time")
    with tempfile.TemporaryDirectory(prefix="sojourn-cost-") as name:
        devices = []
        for number, case in enumerate(cases(SMALL if given.model == "small" else WIDE)):
            folder = Path(name) / str(number)
            folder.mkdir()
            devices.append(Device(case, folder))
        try:
            for _ in range(given.processes):
                for device in devices:
                    device.renew()
            for _ in range(given.turns):
                for device in devices:
                    device.turn()
        finally:
            for device in devices:
                device.end()
    print(" " * 24 + "".join(f"{each:>9}" for each in HEAD))
    plain = devices[0]
    for device in devices:
        plain = device if device.case.name.startswith("fedavg") else plain
        print(row(device, plain))
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
