"""The time of 25 MB from one process to another: through our link, and as one raw publish with paho.

python -m benchmarks.transport_raw [megabytes] [repeats]
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from sojourn.brokers.local_broker import start_broker
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings, LocalBroker

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from sojourn.links.link import Link

TOPIC = "benchmark"
VERSIONS = {"5": MQTTProtocolVersion.MQTTv5, "3.1.1": MQTTProtocolVersion.MQTTv311}


class End(NamedTuple):
    """One side of the connection."""

    publish: Callable[[bytes], object]
    close: Callable[[], object]


class Counter:
    """Count bytes up to a goal."""

    def __init__(self, goal: int) -> None:
        self.up = threading.Event()
        self.done = threading.Event()
        self._missing = goal

    def count(self, payload: bytes) -> None:
        self._missing -= len(payload)
        if self._missing <= 0:
            self.done.set()

    def link_up(self, _link: Link) -> None:
        self.up.set()

    def link_down(self, _link: Link, reason: str) -> None:
        raise SystemExit(reason)

    def arrived(self, _link: Link, _topic: str, payload: bytes) -> None:
        self.count(payload)


def through_link(settings: BrokerSettings, name: str, counter: Counter) -> End:
    link = MqttLink(settings, name)
    link.open(counter, [TOPIC] if name == "receiver" else [], None)
    counter.up.wait()
    return End(lambda payload: link.publish(TOPIC, payload), link.close)


def through_paho(settings: BrokerSettings, name: str, counter: Counter) -> End:
    client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=VERSIONS[settings.protocol])
    client.on_message = lambda _client, _data, message: counter.count(bytes(message.payload))
    client.on_connect = lambda *_: client.subscribe(TOPIC, 1) and None
    client.on_subscribe = lambda *_: counter.up.set()
    client.connect(settings.host, settings.effective_port)
    client.loop_start()
    counter.up.wait()

    def close() -> None:
        client.disconnect()
        client.loop_stop()

    return End(lambda payload: client.publish(TOPIC, payload, 1), close)


def receive(how: Callable[..., End], settings: BrokerSettings, goal: int, pipe: Connection) -> None:
    counter = Counter(goal)
    end = how(settings, "receiver", counter)
    pipe.send("ready")
    counter.done.wait()
    pipe.send("done")
    end.close()


def seconds(how: Callable[..., End], settings: BrokerSettings, total: int, size: int) -> float:
    ours, theirs = multiprocessing.Pipe()
    messages = total // size
    receiver = multiprocessing.Process(target=receive, args=(how, settings, messages * size, theirs))
    receiver.start()
    ours.recv()
    end, payload = how(settings, "sender", Counter(sys.maxsize)), os.urandom(size)
    started = time.perf_counter()
    for _ in range(messages):
        end.publish(payload)
    ours.recv()
    took = time.perf_counter() - started
    end.close()
    receiver.join()
    return took


def main() -> None:
    total = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 25_000_000
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    with tempfile.TemporaryDirectory() as folder:
        local = LocalBroker(kind="mosquitto", max_packet=total + 1_000_000)
        with start_broker(local, Path(folder)) as broker:
            for protocol in ("5", "3.1.1"):
                at = BrokerSettings(host=broker.host, port=broker.port, protocol=protocol, max_payload=total)
                for what, how, size in (
                    ("one raw publish", through_paho, total),
                    ("link, 33 KB each", through_link, 33_000),
                    ("link, 230 KB each", through_link, 230_000),
                ):
                    times = [seconds(how, at, total, size) for _ in range(repeats)]
                    median = statistics.median(times)
                    print(f"MQTT {protocol:5}  {what:18} {median * 1e3:6.0f} ms  {total / median / 1e6:5.0f} MB/s")


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main()
