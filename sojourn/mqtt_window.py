"""What waits to be sent over one connection, and what of it is in flight."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessageInfo

MAX_UNSENT = 64_000_000
"""Bytes that may wait in all; past that a message is dropped."""
MAX_BYTES_IN_FLIGHT = 1_000_000
"""Paho's ping queues up behind what is in flight: this much has to pass within a keepalive, also on a slow uplink."""
MAX_MESSAGES_IN_FLIGHT = 100


class _Message(NamedTuple):
    topic: str
    payload: bytes
    retain: bool


class MqttWindow:
    """Messages are put on any thread; only the network thread hands them to paho."""

    def __init__(self, client: Client) -> None:
        self.max_messages = MAX_MESSAGES_IN_FLIGHT
        self._client = client
        self._lock = threading.Lock()
        self._waiting: deque[_Message] = deque()
        self._unsent = 0
        self._flying: deque[tuple[MQTTMessageInfo, int]] = deque()
        self._flying_bytes = 0

    def put(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Let a message wait, or say False when too much waits already."""
        with self._lock:
            if self._unsent and self._unsent + len(payload) > MAX_UNSENT:
                return False
            self._unsent += len(payload)
            self._waiting.append(_Message(topic, payload, retain))
            return True

    @property
    def wants_feeding(self) -> bool:
        """Whether the one message that waits came just now, so that the network thread may be asleep."""
        return len(self._waiting) == 1

    @property
    def is_empty(self) -> bool:
        """Whether the broker has acknowledged everything."""
        return not self._waiting and not self._flying

    def feed(self) -> None:
        """Forget what is acknowledged, and hand on as much as may be in flight."""
        self._land()
        while self._waiting and self._has_room(len(self._waiting[0].payload)):
            message = self._waiting.popleft()
            size = len(message.payload)
            info = self._client.publish(message.topic, message.payload, qos=1, retain=message.retain)
            self._flying.append((info, size))
            self._flying_bytes += size

    def _land(self) -> None:
        landed = 0
        while self._flying and self._flying[0][0].is_published():
            landed += self._flying.popleft()[1]
        if landed:
            self._flying_bytes -= landed
            with self._lock:
                self._unsent -= landed

    def _has_room(self, size: int) -> bool:
        if not self._flying:
            return True
        return len(self._flying) < self.max_messages and self._flying_bytes + size <= MAX_BYTES_IN_FLIGHT
