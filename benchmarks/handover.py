"""The time of a hand-over: from the result in the edge server's journal to the first step of the next visit.

python -m benchmarks.handover [--hops 20] [--turns 3]

Each model runs with and without a mandate that the devices require and verify, in turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.site import CLASSES, FLEET, TIMEOUT, CompiledModel, MeasuredSite
from edge_agent.agent import Agent
from edge_agent.mandates import Mandates
from edge_agent.training.objectives import NAMES
from edge_agent.training.process import TrainingProcess
from hierarchy.edge.records import VisitKept
from sojourn.data.source import DataSettings
from sojourn.links.mqtt import MqttLink
from sojourn.node.driver import Driver
from sojourn.node.machine import WorkProgress
from sojourn.node.node import Node
from sojourn.parts import Sgd, Training
from sojourn.protocol.mandates import Mandate, sign_mandate
from sojourn.protocol.signing import Signer
from sojourn.protocol.wire import Offer, Task
from sojourn.store.blobs import ref_of
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from sojourn.links.settings import BrokerSettings
    from sojourn.protocol.mandates import SignedMandate

SAMPLES, EPOCHS = 400, 10
TRIPS = 200


class Watched(TrainingProcess):
    """A training process that reports the start of training, before its first step."""

    began: Callable[[], object]

    def start(self, key: str, work: Any, report: Callable[[Any], None]) -> None:
        def watch(event: Any) -> None:
            if isinstance(event, WorkProgress) and event.step == 0:
                self.began()
            report(event)

        super().start(key, work, watch)


def device(settings: BrokerSettings, folder: Path, name: str, pipe: Connection, key: str) -> None:
    """Run a device in a separate process that reports the start of each training. With a key it requires mandates."""
    offer = Offer("", "", "", 1, 0, NAMES, "")
    store = FolderStore(folder / name)
    training = Watched(folder / name / "blobs", DataSettings(path=str(folder / "data.npz")))
    training.began = lambda: pipe.send(time.monotonic())
    mandates = Mandates(FLEET, {key: "ann"} if key else {})
    agent = Agent(name, offer, mandates=mandates)
    driver = Driver(Node(FLEET, agent, store, {"edge": MqttLink(settings, name)}, training))
    threading.Thread(target=lambda: (pipe.recv(), driver.stop())).start()
    driver.run()


def echo(settings: BrokerSettings, pipe: Connection) -> None:
    """Return each message, with plain paho, until it is stopped."""
    client = raw_client(settings, "echo", lambda client, payload: client.publish("raw/here", payload, 1))
    pipe.send("ready")
    pipe.recv()
    client.disconnect()
    client.loop_stop()


def raw_client(settings: BrokerSettings, name: str, took: Callable[[Client, bytes], object]) -> Client:
    up = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2, client_id=f"raw-{name}", protocol=MQTTProtocolVersion.MQTTv5)
    client.on_connect = lambda *_: client.subscribe(f"raw/{name}", 1) and None
    client.on_subscribe = lambda *_: up.set()
    # As our link does; with Nagle's algorithm two trips take 40 ms, which would hide the cost of a hand-over.
    client.on_socket_open = lambda _client, _data, opened: opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.on_message = lambda _client, _data, message: took(client, message.payload)
    client.connect(settings.host, settings.effective_port)
    client.loop_start()
    up.wait(TIMEOUT)
    return client


def two_trips(settings: BrokerSettings, size: int) -> float:
    """Return the median seconds of one message in each direction, with plain paho."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=echo, args=(settings, theirs))
    process.start()
    ours.recv()
    back = threading.Event()
    client = raw_client(settings, "here", lambda *_: back.set())
    times, payload = [], bytes(size)
    for _ in range(TRIPS):
        back.clear()
        begun = time.monotonic()
        client.publish("raw/echo", payload, 1)
        back.wait(TIMEOUT)
        times.append(time.monotonic() - begun)
    ours.send("stop")
    client.disconnect()
    client.loop_stop()
    process.join()
    return statistics.median(times)


def mandate_for(model: CompiledModel, training: Training) -> tuple[SignedMandate, str]:
    """Return a mandate for these tours, and the public key that devices trust."""
    signer, now = Signer(Ed25519PrivateKey.generate()), time.time()
    mandate = Mandate(
        fleet=FLEET, job="benchmark", serial=1, operator="ann", issued=now, ends=now + 86_400.0,
        kit=ref_of(model.packed).digest, model="mlp", classes=CLASSES, class_count=len(CLASSES),
        tasks=(Task("train", training, Sgd(), "float32", 1),), rounds=1000, visits=100_000,
        returns={"model": 8 * len(model.initial)},
    )  # fmt: skip
    return sign_mandate(mandate, signer), signer.public


def handovers(folder: Path, model: CompiledModel, hops: int, *, signed: bool) -> tuple[list[float], float]:
    """Return the seconds of every hand-over of a tour between two devices, and of two raw trips."""
    training = Training(epochs=EPOCHS)
    mandate, key = mandate_for(model, training) if signed else (None, "")
    kept: list[float] = []
    with MeasuredSite(folder, lambda record: isinstance(record, VisitKept) and kept.append(time.monotonic())) as site:
        names, pipes, processes = ["one", "two"], [], []
        for name in names:
            ours, theirs = multiprocessing.Pipe()
            pipes.append(ours)
            arguments = site.broker.settings, folder, name, theirs, key
            processes.append(multiprocessing.Process(target=device, args=arguments))
            processes[-1].start()
        site.await_devices(2)
        route = names * (hops // 2 + 1)
        site.lead(
            model, model.initial, route[:3], training=training, mandate=mandate
        )()  # fetches the kit, starts the workers
        for pipe in pipes:
            drained(pipe)
        kept.clear()
        raw = [two_trips(site.broker.settings, 4 * len(model.initial))]
        start, there = model.initial * np.float32(1.001), route[: hops + 1]
        site.lead(model, start, there, training=training, mandate=mandate)()
        raw.append(two_trips(site.broker.settings, 4 * len(model.initial)))
        times = sorted(at for pipe in pipes for at in drained(pipe))
        for pipe in pipes:
            pipe.send("stop")
        for process in processes:
            process.join()
    # The first visit follows no other, and the last result has no next device.
    return [began - stored for began, stored in zip(times[1:], kept[:-1], strict=True)], statistics.mean(raw)


def drained(pipe: Connection) -> list[float]:
    found = []
    while pipe.poll(0.2):
        found.append(pipe.recv())
    return found


def measured(model: CompiledModel, hops: int, *, signed: bool) -> tuple[list[float], float]:
    """Run it in a separate folder, in milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw = np.random.default_rng(1)
        y = draw.integers(0, len(CLASSES), SAMPLES)
        np.savez(folder / "data.npz", x=draw.random((SAMPLES, 1, 8, 8), np.float32), y=y)
        seconds, raw = handovers(folder, model, hops, signed=signed)
    return [1e3 * each for each in seconds], 1e3 * raw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hops", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    head = f"{'model':22}{'KB':>6}{'mandate':>9}{'median ms':>11}{'min':>7}{'p90':>7}{'max':>7}"
    print(f"{head}{'two raw trips':>15}{'beyond':>8}")
    for what, hidden in (("inside the message", [32]), ("fetched", [128])):
        model = CompiledModel("mlp", (1, 8, 8), hidden=hidden)
        found: dict[bool, tuple[list[float], list[float]]] = {False: ([], []), True: ([], [])}
        for turn in range(2 * arguments.turns):
            signed = turn % 2 == 1
            times, trips = measured(model, arguments.hops, signed=signed)
            found[signed][0].extend(times)
            found[signed][1].append(trips)
        for signed, (all_times, raw) in found.items():
            times, trips = sorted(all_times), statistics.mean(raw)
            median, late = statistics.median(times), times[int(0.9 * len(times))]
            row = f"mlp, {what:17}{4 * len(model.initial) / 1e3:6.0f}{'yes' if signed else 'no':>9}{median:11.1f}"
            print(f"{row}{times[0]:7.1f}{late:7.1f}{times[-1]:7.1f}{trips:15.1f}{median - trips:8.1f}", flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
