"""Savings and cost of int8: payload bytes of one visit on the wire, and accuracy over five seeds.

python -m benchmarks.compression [--seeds 5] [--rounds 10]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.site import CLASSES, EDGE, FLEET, TIMEOUT, CompiledModel, MeasuredSite
from coordinator.jobs.data import digits_split
from fleet_sim.datasets.partition import dirichlet
from fleet_sim.world.memory_fleet import MemoryFleet
from sojourn.data.source import DataSettings
from sojourn.protocol import topics
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from sojourn.links.settings import BrokerSettings
    from sojourn.parts import Encoding

ENCODINGS: tuple[Encoding, ...] = ("float32", "float16", "int8")
SHAPE, SAMPLES = (1, 28, 28), 128
DEVICE = Address("device", "one")
TRIED: tuple[Encoding, ...] = ("float32", "int8")
QUIET = 0.5
DEVICES, ALPHA = 8, 0.5


class Tap:
    """Receive all messages between the edge server and the device, and count their payload bytes."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.down = self.up = self.messages = 0
        listens = threading.Event()
        self._client = client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        to_device, to_edge = (topics.inbox_filter(FLEET, address) for address in (DEVICE, EDGE))
        client.on_connect = lambda *_: client.subscribe([(to_device, 1), (to_edge, 1)]) and None
        client.on_subscribe = lambda *_: listens.set()
        client.on_message = lambda _client, _data, message: self._count(message.topic, len(message.payload))
        client.connect(settings.host, settings.effective_port)
        client.loop_start()
        listens.wait(TIMEOUT)

    def _count(self, topic: str, size: int) -> None:
        if topic == topics.inbox(FLEET, DEVICE, EDGE.name):
            self.down += size
        elif topic == topics.inbox(FLEET, EDGE, DEVICE.name):
            self.up += size
        else:
            return
        self.messages += 1

    def take(self) -> tuple[int, int, int]:
        """Return the count since the last call, once no more messages arrive."""
        before = -1
        while self.messages != before:
            before = self.messages
            time.sleep(QUIET)
        taken = self.down, self.up, self.messages
        self.down = self.up = self.messages = 0
        return taken

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def count_bytes(folder: Path) -> None:
    """Run one visit in each encoding, after one that fetches the kit."""
    model = CompiledModel("cnn", SHAPE, hidden=256)
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (SAMPLES, *SHAPE[1:]), np.uint8)
    np.savez(folder / "data.npz", x=x, y=draw.integers(0, len(CLASSES), SAMPLES))
    size = len(model.initial)
    print(f"one visit of cnn(hidden = 256), {size} numbers, {4 * size / 1e6:.2f} MB in float32")
    print(f"{'':10}{'down':>10}{'up':>10}{'bytes':>10}{'messages':>10}{'/ float32':>11}")
    with MeasuredSite(folder) as site:
        tap = Tap(site.broker.settings)
        process = subprocess.Popen([
            sys.executable, "-m", "sojourn.cli", "agent", "run", "--name", DEVICE.name, "--fleet", FLEET,
            "--broker", site.broker.settings.address, "--data", folder / "data.npz", "--store", folder / "one",
        ], stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            site.await_devices(1)
            site.lead(model, model.initial, [DEVICE.name])()
            tap.take()
            full = 0
            for number, encoding in enumerate(ENCODINGS, 1):
                vector = model.initial * np.float32(1 + number / 100)  # one that the device does not have yet
                site.lead(model, vector, [DEVICE.name], encoding=encoding)()
                down, up, messages = tap.take()
                full = full or down + up
                print(f"{encoding:10}{down:10}{up:10}{down + up:10}{messages:10}{(down + up) / full:11.3f}", flush=True)
        finally:
            process.terminate()
            process.wait()
            tap.close()


def accuracies(folder: Path, seed: int, rounds: int) -> list[float]:
    """Run the same job in both encodings on the same fleet; print the accuracy on the test set after the last round."""
    x, y = digits_split(train=True)
    names = [f"device-{number}" for number in range(DEVICES)]
    for name, part in zip(names, dirichlet(y, DEVICES, ALPHA, seed), strict=True):
        np.savez(folder / f"{name}.npz", x=x[part], y=y[part])
    devices = {name: DataSettings(path=str(folder / f"{name}.npz")) for name in names}
    fleet = MemoryFleet(devices, {"site": tuple(names)})
    found = []
    for encoding in TRIED:
        fleet.submit(
            f'name = "{encoding}"\nrounds = {rounds}\nseed = {seed}\nthreads = 1\nencoding = "{encoding}"\n'
            f'data.test = "digits"\nfleet.devices = {DEVICES}\n'
        )
        job = fleet.run(encoding)
        if job.status != "done":
            raise SystemExit(f"{encoding}, seed {seed}: {job.status} {job.detail}")
        found.append(job.history[-1].accuracy)
    return found


def compare_accuracy(folder: Path, seeds: int, rounds: int) -> None:
    print(f"\naccuracy in % on digits: VISIT, mlp, {DEVICES} devices (Dirichlet, alpha = {ALPHA}), {rounds} rounds")
    print(f"{'seed':10}" + "".join(f"{encoding:>10}" for encoding in TRIED))
    all_found = []
    for seed in range(seeds):
        all_found.append(accuracies(folder, seed, rounds))
        print(f"{seed:<10}" + "".join(f"{100 * each:10.2f}" for each in all_found[-1]), flush=True)
    means = [100 * statistics.mean(column) for column in zip(*all_found, strict=True)]
    print(f"{'mean':10}" + "".join(f"{mean:10.2f}" for mean in means))
    print(f"{'- float32':10}" + "".join(f"{mean - means[0]:+10.2f}" for mean in means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        count_bytes(Path(one))
        compare_accuracy(Path(two), arguments.seeds, arguments.rounds)


if __name__ == "__main__":
    main()
