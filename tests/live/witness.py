"""A client outside of the fleet that receives and counts everything on its brokers."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgpack
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.waiting import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paho.mqtt.client import MQTTMessage

    from sojourn.brokers.local_broker import Broker

NAME, OPERATOR = "witness", "operator"
RULES = f"\nuser {NAME}\ntopic read #\ntopic read $SYS/#\n"
"""The access rule that lets it receive everything."""
QUIET = 0.5
OWN_COUNT = "$SYS/broker/publish/bytes/received"
OFTEN = "sys_interval 1"
"""Mosquitto reports its counts every second instead of every ten."""


class Witness:
    """Payload bytes by kind of message, counting every publish once. It must be started before the fleet."""

    def __init__(self, brokers: Iterable[Broker]) -> None:
        self.bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.repeated = 0
        """The payload bytes of repeated messages, which had no answer within a second."""
        self._seen: set[bytes] = set()
        self.mail = 0
        """The payload bytes of an operator's requests and their answers, which are counted separately."""
        self._own: dict[int, int] = {}
        self._lock = threading.Lock()
        self._clients = [self._listen(number, broker) for number, broker in enumerate(brokers)]

    def total(self) -> int:
        """Return the payload bytes of all the fleet's messages, once it is silent."""
        before = -1
        while (now := self._counted()) != before:
            before = now
            time.sleep(QUIET)
        return now

    def signs_of_life(self) -> int:
        """Of that the signs of life and what was sent again: both go by the clock, so a slow machine has more."""
        with self._lock:
            return sum(self.bytes[kind] for kind in ("progress", "tour-progress")) + self.repeated

    def counted(self) -> tuple[int, int]:
        """Return all payload bytes received here, with operators' messages, and those last reported by the brokers."""
        with self._lock:
            return sum(self.bytes.values()) + self.mail, sum(self._own.values())

    def close(self) -> None:
        for client in self._clients:
            client.disconnect()
            client.loop_stop()

    def _counted(self) -> int:
        with self._lock:
            return sum(self.bytes.values())

    def _listen(self, number: int, broker: Broker) -> Client:
        listens = threading.Event()
        client = Client(CallbackAPIVersion.VERSION2, client_id=NAME, protocol=MQTTProtocolVersion.MQTTv5)
        client.username_pw_set(NAME)
        wanted = [(topic, 1) for topic in ("sojourn/#", OWN_COUNT)]
        client.on_connect = lambda *_: client.subscribe(wanted) and None
        client.on_subscribe = lambda *_: listens.set()
        client.on_message = lambda _client, _data, message: self._receive(number, message)
        client.connect(broker.host, broker.port)
        client.loop_start()
        assert listens.wait(LIMIT)
        return client

    def _receive(self, number: int, message: MQTTMessage) -> None:
        size = len(message.payload)
        with self._lock:
            if message.topic == OWN_COUNT:
                self._own[number] = int(message.payload)
            elif OPERATOR in message.topic.split("/"):
                self.mail += size
            else:
                packet = msgpack.unpackb(message.payload)
                del packet["id"]  # every packet has its own
                content = hashlib.sha256(message.topic.encode() + msgpack.packb(packet)).digest()
                self.repeated += size if content in self._seen else 0
                self._seen.add(content)
                self.bytes[packet["kind"]] += size
                self.messages[packet["kind"]] += 1
