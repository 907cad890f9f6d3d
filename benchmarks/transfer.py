"""Transfer of 25 MB: a blob pulled from one process's store to another's, and one raw paho publish of the same bytes.

python -m benchmarks.transfer [--megabytes 25] [--repeats 9]
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
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.bare_machine import BareMachine
from sojourn.brokers.local_broker import start_broker
from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings, LocalBroker
from sojourn.node.driver import Driver
from sojourn.node.machine import Pull, Pulled, Received, Send
from sojourn.node.node import Node
from sojourn.node.workers import InlineWorkers
from sojourn.parts import Sgd, Training
from sojourn.protocol.messages import Prepare
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref, Task
from sojourn.store.blobs import ref_of
from sojourn.store.journal import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from sojourn.brokers.local_broker import Broker
    from sojourn.node.machine import Effect

TOPIC = "benchmark/raw"
SENDER, RECEIVER = Address("edge", "sender"), Address("device", "receiver")
TASK = Task("train", Training(), Sgd(), "float32", None)
TIMEOUT = 60.0


class Offered(msgspec.Struct, frozen=True):
    """Request that the sender announces a blob to the receiver."""

    ref: Ref


class Mover(BareMachine):
    """A minimal machine that can send and receive a blob."""

    def __init__(self, address: Address, peer: Address, kept: Callable[[], object]) -> None:
        super().__init__(address, peer)
        self._kept = kept

    def handle(self, event: Any, _now: float) -> list[Effect]:
        match event:
            case Offered():
                self._live.add(event.ref.digest)
                return [Send(self._peer, Prepare("benchmark", event.ref, TASK))]
            case Received(message=Prepare() as message):
                self._live.add(message.kit.digest)
                return [Pull(message.kit, self._peer)]
            case Pulled():
                self._kept()
        return []


class Raw:
    """A plain paho client with its own loop."""

    def __init__(self, settings: BrokerSettings, name: str, arrived: Callable[[], object]) -> None:
        up = threading.Event()
        self.client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self.client.on_connect = lambda *_: self.client.subscribe(f"{TOPIC}/{name}", 1) and None
        self.client.on_subscribe = lambda *_: up.set()
        self.client.on_message = lambda *_: arrived()
        self.client.connect(settings.host, settings.effective_port)
        self.client.loop_start()
        up.wait(TIMEOUT)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Ends(NamedTuple):
    """The connections of one process to the broker."""

    driver: Driver
    thread: threading.Thread
    raw: Raw

    def close(self) -> None:
        self.driver.stop()
        self.thread.join()
        self.raw.close()


def open_ends(settings: BrokerSettings, folder: Path, address: Address, peer: Address, kept: Callable[[], Any]) -> Ends:
    node = Node(
        "benchmark",
        Mover(address, peer, kept),
        FolderStore(folder),
        {peer.role: MqttLink(settings, address.name)},
        InlineWorkers(lambda work: work),
    )
    driver = Driver(node)
    thread = threading.Thread(target=driver.run)
    thread.start()
    up = threading.Event()
    raw = Raw(settings, f"raw-{address.name}", kept)
    deadline = time.monotonic() + TIMEOUT
    while not up.is_set() and time.monotonic() < deadline:  # the link is up when its limit is known
        driver.call(lambda _now: up.set() if node.links[peer.role]._session else None)  # noqa: SLF001
        time.sleep(0.02)
    return Ends(driver, thread, raw)


def receive(settings: BrokerSettings, folder: Path, pipe: Connection) -> None:
    """Run the receiving process: it reports when it is ready, and the time of each arrival."""
    ends = open_ends(settings, folder, RECEIVER, SENDER, lambda: pipe.send(time.monotonic()))
    pipe.send("ready")
    pipe.recv()
    ends.close()


class TransferLane:
    """A broker with a sender, here, and a receiver in a separate process."""

    def __init__(self, broker: Broker, folder: Path, max_payload: int | None) -> None:
        self._broker = broker
        settings = BrokerSettings(host=broker.host, port=broker.port, protocol="5", max_payload=max_payload)
        self._pipe, theirs = multiprocessing.Pipe()
        self._receiver = multiprocessing.Process(target=receive, args=(settings, folder / "receiver", theirs))
        self._receiver.start()
        self._ends = open_ends(settings, folder / "sender", SENDER, RECEIVER, lambda: None)
        self._wait()

    @property
    def payload(self) -> int:
        return self._ends.driver.node.links["device"].payload_limit

    def pulled(self, data: bytes) -> float:
        """Return seconds from the announcement of a blob to its last verified byte in the receiver's store."""
        ref = ref_of(data)
        node = self._ends.driver.node
        node.store.blobs.put(data, ref.digest)
        begun = time.monotonic()
        self._ends.driver.call(lambda now: node.inject(Offered(ref), now))  # type: ignore[arg-type]
        return self._wait() - begun

    def published(self, data: bytes) -> float:
        """Return seconds from one raw publish to its arrival in the receiver's callback."""
        begun = time.monotonic()
        self._ends.raw.client.publish(f"{TOPIC}/raw-{RECEIVER.name}", data, 1)
        return self._wait() - begun

    def peak(self, move: Callable[[bytes], float], data: bytes) -> tuple[float, float]:
        """Return seconds of a transfer, and the broker's peak memory during it, in MB."""
        process = Path("/proc") / str(self._broker.pid)
        (process / "clear_refs").write_text("5")  # resets the peak
        took = move(data)
        lines = (process / "status").read_text().splitlines()
        return took, next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3

    def close(self) -> None:
        self._pipe.send("done")
        self._ends.close()
        self._receiver.join()

    def _wait(self) -> Any:
        if not self._pipe.poll(TIMEOUT):
            raise SystemExit(f"nothing came within {TIMEOUT:g} s")
        return self._pipe.recv()


def row(what: str, size: int, measured: list[tuple[float, float]], raw: float | None) -> float:
    """Print one line of the table and return the median time."""
    times = sorted(took for took, _ in measured)
    median = statistics.median(times)
    ratio = "" if raw is None else f"{median / raw:6.2f}"
    spread = f"{times[0] * 1e3:5.0f} to {times[-1] * 1e3:5.0f}"
    peak = max(peak for _, peak in measured)
    print(f"{what:32}{median * 1e3:8.0f}   {spread:16}{size / median / 1e6:6.0f}{peak:8.0f}{ratio:>9}")
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    size = int(arguments.megabytes * 1e6)
    print(f"{size} bytes, {arguments.repeats} repeats in turns")
    print(f"{'':32}{'median ms':>9}  {'ms':16}{'MB/s':>6}{'broker MB':>10}{'/ raw':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with start_broker(LocalBroker(kind="mosquitto", max_packet=size + 1_000_000), folder / "wide") as broker:
            lane = TransferLane(broker, folder / "wide", PORTABLE_PAYLOAD)
            lane.pulled(os.urandom(1_000_000)), lane.published(os.urandom(1_000_000))
            ours, raw = [], []
            for _ in range(arguments.repeats):
                data = os.urandom(size)
                ours.append(lane.peak(lane.pulled, data))
                raw.append(lane.peak(lane.published, data))
            base = row("one raw publish", size, raw, None)
            row(f"pulled, payloads <= {lane.payload}", size, ours, base)
            lane.close()
        with start_broker(LocalBroker(kind="mosquitto", max_packet=128 << 10), folder / "narrow") as broker:
            lane = TransferLane(broker, folder / "narrow", None)
            row(
                f"broker of 128 KB, <= {lane.payload}",
                size,
                [lane.peak(lane.pulled, os.urandom(size)) for _ in range(arguments.repeats)],
                base,
            )
            lane.close()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
