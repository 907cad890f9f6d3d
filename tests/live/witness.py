"""A client that is no part of a fleet hears all that its brokers carry, and counts it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import msgpack
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paho.mqtt.client import MQTTMessage

    from sojourn.brokers.run import Broker

NAME, OPERATOR = "witness", "operator"
RULES = f"\nuser {NAME}\ntopic read #\ntopic read $SYS/#\n"
"""What a broker's access list needs to let it hear everything."""
PATIENCE = 60.0
QUIET = 0.5
OWN_COUNT = "$SYS/broker/publish/bytes/received"
UPTIME = "$SYS/broker/uptime"
"""Mosquitto says what has changed every so often, and its uptime always has, before everything else."""
OFTEN = "sys_interval 1"
"""What its configuration needs so that nobody waits ten seconds for it."""


class Witness:
    """Payload bytes by kind of message, every publish once. It has to be there before the fleet is."""

    def __init__(self, brokers: Iterable[Broker]) -> None:
        self.bytes: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.mail = 0
        """The payload bytes of an operator's questions and of their answers, which are not among the others."""
        self._own: dict[int, int] = {}
        self._ticks: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._clients = [self._listen(number, broker) for number, broker in enumerate(brokers)]

    def total(self) -> int:
        """The payload bytes of all that the fleet has said, once it says nothing more."""
        before = -1
        while (now := self._counted()) != before:
            before = now
            time.sleep(QUIET)
        return now

    def signs_of_life(self) -> int:
        """Of that the signs of life: they are given by the clock, so there are more of them the slower a machine is."""
        with self._lock:
            return sum(self.bytes[kind] for kind in ("progress", "tour-progress"))

    def said_by_brokers(self) -> int:
        """The payload bytes that the brokers themselves say they took, an operator's mail with them."""
        told = self._ticks.copy()
        deadline = time.monotonic() + PATIENCE
        while any(self._ticks[number] == told[number] for number in range(len(self._clients))):
            assert time.monotonic() < deadline, "a broker does not tell what it has counted"
            time.sleep(QUIET)
        time.sleep(QUIET)  # the count is told a moment after the uptime
        return sum(self._own.values())

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
        wanted = [(topic, 1) for topic in ("sojourn/#", OWN_COUNT, UPTIME)]
        client.on_connect = lambda *_: client.subscribe(wanted) and None
        client.on_subscribe = lambda *_: listens.set()
        client.on_message = lambda _client, _data, message: self._hear(number, message)
        client.connect(broker.host, broker.port)
        client.loop_start()
        assert listens.wait(PATIENCE)
        return client

    def _hear(self, number: int, message: MQTTMessage) -> None:
        size = len(message.payload)
        with self._lock:
            if message.topic == OWN_COUNT:
                self._own[number] = int(message.payload)
            elif message.topic == UPTIME:
                self._ticks[number] += 1
            elif OPERATOR in message.topic.split("/"):
                self.mail += size
            else:
                kind = msgpack.unpackb(message.payload)["kind"]
                self.bytes[kind] += size
                self.messages[kind] += 1
