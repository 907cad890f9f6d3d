"""The prediction of a simulation compared with a real fleet: the same job, eight agents over Mosquitto.

python -m benchmarks.predicted [--strategy visit] [--encoding float32] [--rounds 5] [--epochs 2] [--profile FILE]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import numpy as np

from edge_agent.setup import profiling
from fleet_sim.board_profiles import find_profile
from fleet_sim.datasets import load
from fleet_sim.datasets.partition import split
from fleet_sim.demo.fleet import Demo, demo_job
from fleet_sim.run import SimulationRun
from fleet_sim.settings import read_simulation
from fleet_sim.world.memory_fleet import FLEET
from sojourn.links.memory import MemoryLink
from sojourn.model.workload import speed
from sojourn.settings import dumps
from tests.live.live_fleet import LiveFleet
from tests.live.witness import OPERATOR

if TYPE_CHECKING:
    from fleet_sim.settings import Simulation
    from sojourn.links.link import Link
    from sojourn.links.memory import MemoryBroker
    from sojourn.protocol.wire import RoundReport

JOB, DEVICES, SITES, ALPHA = "predicted", 8, 2, 0.5
HIDDEN = [128]
SECONDS = 5.0
EVERYTHING = [f"sojourn/1/{FLEET}/+/+/in/+", f"sojourn/1/{FLEET}/+/+/state"]


@dataclass
class MessageCount:
    """Payload bytes and messages by kind."""

    sizes: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    def listen(self, broker: MemoryBroker) -> None:
        MemoryLink(broker).open(self, EVERYTHING, None)

    def link_up(self, link: Link) -> None: ...

    def link_down(self, link: Link, reason: str) -> None: ...

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:  # noqa: ARG002
        if OPERATOR not in topic.split("/"):
            kind = msgpack.unpackb(payload)["kind"]
            self.sizes[kind] += len(payload)
            self.messages[kind] += 1


@dataclass(frozen=True)
class JobTrace:
    """The course of a job: its rounds, its messages, and the brokers' count."""

    rounds: list[RoundReport]
    received: MessageCount
    total: int


def simulation_of(strategy: str, encoding: str, rounds: int, epochs: int, profile: str) -> Simulation:
    """Return the demo's job, for a model that does not fit into one message."""
    demo = Demo(
        devices=DEVICES,
        edges=SITES,
        rounds=rounds,
        target=None,
        strategy=strategy,
        alpha=ALPHA,
        seed=0,
        brokers="per-site",
    )
    job = {**demo_job(JOB, demo), "encoding": encoding, "model": {"name": "mlp", "options": {"hidden": HIDDEN}}}
    job["training"] = {**job["training"], "epochs": epochs}
    del job["data"]
    fleet = {"data": "digits", "devices": DEVICES, "sites": SITES, "engine": "serial", "board": profile}
    return read_simulation(dumps({**job, "simulation": fleet, "split": {"alpha": ALPHA}}), "the benchmark")


def simulated(simulation: Simulation, folder: Path) -> JobTrace:
    received = MessageCount()
    running = SimulationRun(simulation, folder)
    try:
        for broker in running.fleet.brokers.values():
            received.listen(broker)
        *_, course = running.courses()
    finally:
        running.close()
    return JobTrace(list(course.history), received, running.fleet.traffic)


def lived(simulation: Simulation, folder: Path, test: Path) -> JobTrace:
    """Run the same job on a fleet of processes whose devices have the same samples."""
    samples, data = load(simulation.fleet.data), {}
    parts = split(simulation.split, samples, DEVICES, simulation.read().seed)
    for name, part in zip(simulation.fleet.names, parts, strict=True):
        data[name] = str(folder / f"{name}.npz")
        np.savez(data[name], x=samples.x_train[part], y=samples.y_train[part])
    sites = {site: list(devices) for site, devices in simulation.fleet.devices_by_site.items()}
    live = LiveFleet(folder, sites, own_brokers=True, data=data, flags=("--share", "class-counts"), witnessed=True)
    try:
        view = live.run(simulation.job_text(test), JOB)
        assert live.witness
        total = live.witness.total()
        received = MessageCount(live.witness.bytes.copy(), live.witness.messages.copy())
    finally:
        live.stop()
    return JobTrace(list(view.history), received, total)


def measured(path: Path) -> str:
    """Return this machine's profile, as `sojourn agent profile --threads 1` measures it."""
    profile = profiling.profile_of("here", speed(SECONDS, 1), 1, profiling.worker_start(), None)
    path.write_text(profiling.text_of(profile), encoding="utf-8")
    return str(path)


def row(what: str, predicted: float, counted: float, digits: int = 0) -> str:
    difference = f"{predicted / counted - 1:+9.2%}" if counted else f"{'':>9}"
    return f"{what:24}{predicted:12,.{digits}f}{counted:12,.{digits}f}{difference}"


def show(ours: JobTrace, theirs: JobTrace) -> None:
    print(f"{'':24}{'predicted':>12}{'counted':>12}")
    for one, other in zip_longest(ours.rounds, theirs.rounds):
        print(row(f"round {one.round}, bytes", one.traffic, other.traffic))
    print(row("all brokers, bytes", ours.total, theirs.total))
    for kind in sorted(ours.received.sizes | theirs.received.sizes, key=lambda kind: -theirs.received.sizes[kind]):
        print(
            row(f"  {kind} x {theirs.received.messages[kind]}", ours.received.sizes[kind], theirs.received.sizes[kind])
        )
    for one, other in zip_longest(ours.rounds, theirs.rounds):
        print(row(f"round {one.round}, seconds", one.seconds, other.seconds, 2))
    same = [
        one.accuracy == other.accuracy and one.visits == other.visits
        for one, other in zip_longest(ours.rounds, theirs.rounds)
    ]
    print(f"accuracy and visits are the same in {sum(same)} of {len(same)} rounds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="visit")
    parser.add_argument("--encoding", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--profile", help="a board or a file; without one this machine is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile = arguments.profile or measured(folder / "here.toml")
        device = find_profile(profile).device
        simulation = simulation_of(arguments.strategy, arguments.encoding, arguments.rounds, arguments.epochs, profile)
        ours = simulated(simulation, folder / "simulation")
        theirs = lived(simulation, folder, folder / "simulation" / "test.npz")
    print(
        f"{arguments.strategy}, {arguments.encoding}, mlp({HIDDEN[0]}), "
        f"{DEVICES} agents at {SITES} sites, {Path(profile).name}"
    )
    print(
        f"{device.flops / 1e9:.1f} GFLOP/s and {1e3 * device.step_seconds:.2f} ms a step on {device.cores} cores; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()}"
    )
    show(ours, theirs)


if __name__ == "__main__":
    main()
