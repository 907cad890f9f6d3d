"""What signatures cost: a hop of a tour, and the coordinator's work on a round, with them and without, in turns.

python -m benchmarks.signed_hops [--turns 10] [--hops 20]

A hop: a tour back and forth between devices that sign and between devices that do not, over one Mosquitto, with real
training processes; the wall time of a tour over its hops. Turn by turn, so that whatever else runs meets both.
The coordinator: its processor time for a round of FedAvg, from the plan to the test of the model, on brokers in memory:
what it spends on its connection to a broker, which is the same in both, is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.site import CLASSES, FLEET, CompiledModel, MeasuredSite
from edge_agent.agent import Agent
from edge_agent.joining.signing import visit_signer
from edge_agent.training.objectives import NAMES
from edge_agent.training.process import TrainingProcess
from fleet_sim.world.memory_fleet import CLOUD
from sojourn.data.source import DataSettings
from sojourn.links.mqtt import MqttLink
from sojourn.node.driver import Driver
from sojourn.node.node import Node
from sojourn.parts import Training
from sojourn.protocol.node_signing import NodeKey
from sojourn.protocol.wire import Offer
from sojourn.store.journal import FolderStore
from tests.fleet_sim.signed_fleet import SignedFleet
from tests.fleet_sim.small_fleet import fedavg

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from sojourn.links.settings import BrokerSettings

SAMPLES, EPOCHS, ROUNDS = 200, 1, 5
SITES = {"site-a": tuple(f"dev-{number}" for number in range(6))}


def device(settings: BrokerSettings, folder: Path, name: str, pipe: Connection) -> None:
    """A device, in a process of its own; one whose folder has a key signs."""
    store = FolderStore(folder / name)
    training = TrainingProcess(folder / name / "blobs", DataSettings(path=str(folder / "data.npz")))
    keys = folder / "keys" / name
    agent = Agent(name, Offer("", "", "", 1, 0, NAMES, ""), sign=visit_signer(name, keys) if keys.exists() else None)
    driver = Driver(Node(FLEET, agent, store, {"edge": MqttLink(settings, name)}, training))
    threading.Thread(target=lambda: (pipe.recv(), driver.stop())).start()
    driver.run()


def hops(folder: Path, model: CompiledModel, turns: int, count: int) -> dict[str, list[float]]:
    """Milliseconds of a hop in each turn."""
    pairs_of = {"signed": ["one", "two"], "plain": ["three", "four"]}
    keys = {}
    for name in pairs_of["signed"]:
        (folder / "keys" / name).mkdir(parents=True)
        keys[name] = NodeKey.generate(folder / "keys" / name / "node.key").public_bytes
    found: dict[str, list[float]] = {"signed": [], "plain": []}
    with MeasuredSite(folder) as site:
        pipes, processes = [], []
        for name in ("one", "two", "three", "four"):
            ours, theirs = multiprocessing.Pipe()
            pipes.append(ours)
            processes.append(multiprocessing.Process(target=device, args=(site.broker.settings, folder, name, theirs)))
            processes[-1].start()
        site.await_devices(4)
        training = Training(epochs=EPOCHS)
        for turn in range(turns + 1):
            order = ("signed", "plain") if turn % 2 else ("plain", "signed")
            for what in order:
                route = (pairs_of[what] * (count // 2 + 1))[:count]
                begun = time.monotonic()
                vector = model.initial * np.float32(1 + turn / 1000)
                site.lead(model, vector, route, training=training, keys=keys if what == "signed" else None)()
                if turn:  # the first one fetches the kit and starts the workers
                    found[what].append(1e3 * (time.monotonic() - begun) / count)
        for pipe in pipes:
            pipe.send("stop")
        for process in processes:
            process.join()
    return found


def rounds(turns: int) -> dict[str, list[float]]:
    """Milliseconds of the coordinator's processor time for a round, in each turn; without its broker connection."""
    found: dict[str, list[float]] = {"signed": [], "plain": []}
    for turn in range(turns + 1):
        for what in ("signed", "plain") if turn % 2 else ("plain", "signed"):
            nobody = SignedFleet(SITES, policy="off", unsigned=SITES["site-a"])
            fleet = SignedFleet(SITES) if what == "signed" else nobody
            used = timed(fleet.nodes[CLOUD].node)
            fleet.submit(fedavg(rounds=ROUNDS, fleet__devices=6, training__lr=0.05))
            state = fleet.run("job")
            if [report.tours for report in state.history] != [6] * ROUNDS:
                raise SystemExit(f"tours were refused: {state.history[-1].failures}")
            if turn:
                found[what].append(1e3 * sum(used) / ROUNDS)
    return found


def timed(node: Node) -> list[float]:
    """Takes down the processor time of all that a node is asked to do."""
    used: list[float] = []
    for name in ("arrived", "inject", "tick", "link_up"):
        setattr(node, name, counted(getattr(node, name), used))
    return used


def counted(call: Callable[..., None], used: list[float]) -> Callable[..., None]:
    def counting(*arguments: object) -> None:
        begun = time.process_time()
        call(*arguments)
        used.append(time.process_time() - begun)

    return counting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--hops", type=int, default=20)
    asked = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw = np.random.default_rng(1)
        y = draw.integers(0, len(CLASSES), SAMPLES)
        np.savez(folder / "data.npz", x=draw.random((SAMPLES, 1, 8, 8), np.float32), y=y)
        model = CompiledModel("mlp", (1, 8, 8), hidden=[32])
        one = hops(folder, model, asked.turns, asked.hops)
        show("a hop, ms of wall time", one)
        more = statistics.median(one["signed"]) - statistics.median(one["plain"])
        print(f"more for signatures: {more:.2f} ms (reach 5)")
        coordinator = rounds(asked.turns)
        show("the coordinator, ms of processor time for a round of 6 visits", coordinator)
        signed, plain = (statistics.median(coordinator[what]) for what in ("signed", "plain"))
        print(f"with / without: {signed / plain:.3f} (reach 1.1); {(signed - plain) / 6:.3f} ms more for each visit")
    print(f"load {os.getloadavg()[0]:.1f}")


def show(what: str, found: dict[str, list[float]]) -> None:
    for kind, times in found.items():
        row = " ".join(f"{each:.2f}" for each in times)
        print(f"{what}, {kind}: median {statistics.median(times):.2f}; {row}", flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
