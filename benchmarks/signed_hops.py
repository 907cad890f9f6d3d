"""The cost of signatures: a hop of a tour, and the coordinator's work on a round, with and without them, in turns.

python -m benchmarks.signed_hops [--turns 10] [--hops 20]

A hop: a tour between devices that sign and between devices that do not, over one Mosquitto, with real training
processes; the wall time of a tour divided by its hops, in turns, so that other load affects both.
The coordinator: its processor time for a round of FedAvg with four devices, as a process next to an edge server and the
devices on a real Mosquitto, from a job's submission to its end.
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

from benchmarks.idle_agent import processor_seconds
from benchmarks.site import CLASSES, FLEET, CompiledModel, MeasuredSite
from edge_agent.agent import Agent
from edge_agent.result_signing import visit_signer
from edge_agent.training.objectives import NAMES
from edge_agent.training.process import TrainingProcess
from sojourn import settings
from sojourn.data.source import DataSettings
from sojourn.links.mqtt import MqttLink
from sojourn.node.driver import Driver
from sojourn.node.node import Node
from sojourn.parts import Sgd, Training
from sojourn.protocol.signing import NodeKey, VisitStatement, is_signed, sign, task_digest
from sojourn.protocol.wire import Offer, Task, VisitId
from sojourn.store.journal import FolderStore
from tests.live.live_fleet import LiveFleet

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from sojourn.links.settings import BrokerSettings

SAMPLES, EPOCHS, ROUNDS = 200, 1, 20


def device(settings: BrokerSettings, folder: Path, name: str, pipe: Connection) -> None:
    """Run a device in a separate process; it signs if its folder has a key."""
    store = FolderStore(folder / name)
    training = TrainingProcess(folder / name / "blobs", DataSettings(path=str(folder / "data.npz")))
    keys = folder / "keys" / name
    agent = Agent(name, Offer("", "", "", 1, 0, NAMES, ""), sign=visit_signer(name, keys) if keys.exists() else None)
    driver = Driver(Node(FLEET, agent, store, {"edge": MqttLink(settings, name)}, training))
    threading.Thread(target=lambda: (pipe.recv(), driver.stop())).start()
    driver.run()


def hops(folder: Path, model: CompiledModel, turns: int, count: int) -> dict[str, list[float]]:
    """Return milliseconds of a hop in each turn."""
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


def alone(folder: Path, times: int = 2_000) -> tuple[float, float]:
    """Return milliseconds of processor time of a signature and of its verification."""
    key = NodeKey.generate(folder / "alone.key")
    task = Task("train", Training(), Sgd(), "float32", 1)

    def statement() -> VisitStatement:
        one = (("model", bytes(32)),)
        return VisitStatement(
            "pi-1", VisitId("job", 1, 0, 0, (1, 1)), bytes(32), task_digest(task), one, one, 200, 7, b""
        )

    begun = time.process_time()
    for _ in range(times):
        signature = sign(key, statement())
    signed = time.process_time()
    for _ in range(times):
        if not is_signed(statement(), key.public_bytes, signature.signature):
            raise SystemExit("a signature does not verify")
    return 1e3 * (signed - begun) / times, 1e3 * (time.process_time() - signed) / times


class SigningFleet(LiveFleet):
    """Four devices, an edge server and a coordinator as real processes; the devices optionally have keys and sign."""

    def __init__(self, folder: Path, *, signs: bool) -> None:
        self.keys: dict[str, str] = {}
        self.signs = signs
        folder.mkdir()
        self.file = folder / "coordinator.toml"
        super().__init__(folder, {"edge-1": [f"pi-{number}" for number in range(1, 5)]}, own_brokers=False)

    def _add(self, name: str, command: list[str]) -> None:
        """Start with a settings file that names the keys."""
        if self.signs and command[0] == "agent":
            identity = self.folder / f"{name}-identity"
            identity.mkdir()
            self.keys[name] = NodeKey.generate(identity / "node.key").public
            (self.folder / "node-keys.toml").write_text(settings.dumps({"keys": self.keys}))
            file = self.folder / f"{name}.toml"
            file.write_text(settings.dumps({"identity": {"folder": str(identity)}}))
            command = ["agent", "run", str(file), *command[2:]]
        if self.signs and command[0] == "coordinator":
            self.file.write_text('node_keys_file = "node-keys.toml"\nsigned_hops = "require"\n')
            (self.folder / "node-keys.toml").write_text("[keys]\n")
            command = ["coordinator", "run", str(self.file), *command[2:]]
        super()._add(name, command)

    def processor(self) -> float:
        """Return the coordinator's CPU seconds so far."""
        return processor_seconds([self.processes["cloud"].pid])


def rounds(folder: Path, turns: int) -> dict[str, list[float]]:
    """Return milliseconds of the coordinator's processor time for a round, in each turn."""
    found: dict[str, list[float]] = {"signed": [], "plain": []}
    fleets = {what: SigningFleet(folder / what, signs=what == "signed") for what in found}
    try:
        for turn in range(turns + 1):
            for what in ("signed", "plain") if turn % 2 else ("plain", "signed"):
                text = (
                    f'name = "job-{turn}"\nstrategy = "fedavg"\nrounds = {ROUNDS}\nthreads = 1\ndata.test = "digits"\n'
                )
                text += "model.options.hidden = [16]\nfleet.devices = 4\ntraining.lr = 0.02\n"
                before = fleets[what].processor()
                view = fleets[what].run(text, f"job-{turn}")
                if view.status != "done" or any(report.tours != 4 for report in view.history):
                    raise SystemExit(f"{view.detail} {[report.failures for report in view.history]}")
                if turn:
                    found[what].append(1e3 * (fleets[what].processor() - before) / ROUNDS)
    finally:
        for fleet in fleets.values():
            fleet.stop()
    return found


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
        print(
            "of processor time: {:.3f} ms to sign a result, {:.3f} ms to verify one".format(*alone(folder)), flush=True
        )
        coordinator = rounds(folder, asked.turns)
        show("the coordinator, ms of processor time for a round of 4 visits", coordinator)
        signed, plain = (statistics.median(coordinator[what]) for what in ("signed", "plain"))
        print(f"with / without: {signed / plain:.3f} (reach 1.1); {(signed - plain) / 4:.3f} ms more for each visit")
    print(f"load {os.getloadavg()[0]:.1f}")


def show(what: str, found: dict[str, list[float]]) -> None:
    for kind, times in found.items():
        row = " ".join(f"{each:.2f}" for each in times)
        print(f"{what}, {kind}: median {statistics.median(times):.2f}; {row}", flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
