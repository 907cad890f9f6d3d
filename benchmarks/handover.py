"""How long the model is between two devices: from the result in the edge's journal to the first step of the next visit.

python -m benchmarks.handover [--hops 20]
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
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.site import CLASSES, FLEET, PATIENCE, CompiledModel, MeasuredSite
from edge_agent.agent import Agent
from edge_agent.training.objectives import NAMES
from edge_agent.training.process import TrainingProcess
from hierarchy.edge.records import VisitKept
from sojourn.data.source import DataSettings
from sojourn.links.mqtt import MqttLink
from sojourn.node.driver import Driver
from sojourn.node.machine import Doing
from sojourn.node.node import Node
from sojourn.parts import Training
from sojourn.protocol.wire import Offer
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from sojourn.links.settings import BrokerSettings

SAMPLES, EPOCHS = 400, 10
TRIPS = 200


class Watched(TrainingProcess):
    """A training process that tells when training begins: the worker says so before its first step."""

    began: Callable[[], object]

    def start(self, key: str, work: Any, report: Callable[[Any], None]) -> None:
        def watch(event: Any) -> None:
            if isinstance(event, Doing) and event.step == 0:
                self.began()
            report(event)

        super().start(key, work, watch)


def device(settings: BrokerSettings, folder: Path, name: str, pipe: Connection) -> None:
    """A device, in a process of its own; it says at what time each visit's training began."""
    offer = Offer("", "", "", 1, 0, NAMES, "")
    store = FolderStore(folder / name)
    training = Watched(folder / name / "blobs", DataSettings(path=str(folder / "data.npz")))
    training.began = lambda: pipe.send(time.monotonic())
    driver = Driver(Node(FLEET, Agent(name, offer), store, {"edge": MqttLink(settings, name)}, training))
    threading.Thread(target=lambda: (pipe.recv(), driver.stop())).start()
    driver.run()


def echo(settings: BrokerSettings, pipe: Connection) -> None:
    """Sends back what comes, with nothing but paho, until it is asked to stop."""
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
    # As our own link does it; with Nagle's algorithm two trips take 40 ms and any hand-over looks good.
    client.on_socket_open = lambda _client, _data, opened: opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.on_message = lambda _client, _data, message: took(client, message.payload)
    client.connect(settings.host, settings.effective_port)
    client.loop_start()
    up.wait(PATIENCE)
    return client


def two_trips(settings: BrokerSettings, size: int) -> float:
    """Median seconds of one way there and one way back, with nothing but paho."""
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
        back.wait(PATIENCE)
        times.append(time.monotonic() - begun)
    ours.send("stop")
    client.disconnect()
    client.loop_stop()
    process.join()
    return statistics.median(times)


def handovers(folder: Path, model: CompiledModel, hops: int) -> tuple[list[float], float]:
    """Seconds of every hand-over of a tour back and forth between two devices, and of two raw trips."""
    kept: list[float] = []
    with MeasuredSite(folder, lambda record: isinstance(record, VisitKept) and kept.append(time.monotonic())) as site:
        names, pipes, processes = ["one", "two"], [], []
        for name in names:
            ours, theirs = multiprocessing.Pipe()
            pipes.append(ours)
            arguments = site.broker.settings, folder, name, theirs
            processes.append(multiprocessing.Process(target=device, args=arguments))
            processes[-1].start()
        site.await_devices(2)
        training = Training(epochs=EPOCHS)
        route = names * (hops // 2 + 1)
        site.lead(model, model.initial, route[:3], training=training)()  # fetches the kit, starts the workers
        for pipe in pipes:
            drained(pipe)
        kept.clear()
        raw = [two_trips(site.broker.settings, 4 * len(model.initial))]
        wait = site.lead(model, model.initial * np.float32(1.001), route[: hops + 1], training=training)
        wait()
        raw.append(two_trips(site.broker.settings, 4 * len(model.initial)))
        times = sorted(at for pipe in pipes for at in drained(pipe))
        for pipe in pipes:
            pipe.send("stop")
        for process in processes:
            process.join()
    # The first visit follows no other, and the last result is handed to nobody.
    return [began - stored for began, stored in zip(times[1:], kept[:-1], strict=True)], statistics.mean(raw)


def drained(pipe: Connection) -> list[float]:
    found = []
    while pipe.poll(0.2):
        found.append(pipe.recv())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hops", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{'model':22}{'KB':>6}{'median ms':>11}{'min':>7}{'p90':>7}{'max':>7}{'two raw trips':>15}{'beyond':>8}")
    for what, hidden in (("inside the message", [32]), ("fetched", [128])):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            draw = np.random.default_rng(1)
            y = draw.integers(0, len(CLASSES), SAMPLES)
            np.savez(folder / "data.npz", x=draw.random((SAMPLES, 1, 8, 8), np.float32), y=y)
            model = CompiledModel("mlp", (1, 8, 8), hidden=hidden)
            seconds, raw = handovers(folder, model, arguments.hops)
        times, trips = sorted(1e3 * each for each in seconds), 1e3 * raw
        median, late = statistics.median(times), times[int(0.9 * len(times))]
        row = f"mlp, {what:17}{4 * len(model.initial) / 1e3:6.0f}{median:11.1f}"
        print(f"{row}{times[0]:7.1f}{late:7.1f}{times[-1]:7.1f}{trips:15.1f}{median - trips:8.1f}", flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
