"""The send queue of one connection, and its messages in flight."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from paho.mqtt.enums import MQTTErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import Client, MQTTMessageInfo

MAX_UNSENT = 64_000_000
"""Total bytes that may wait; further messages are dropped."""
SLOWEST_UPLINK = 16_000
"""Bytes per second. The ping waits behind the bytes in flight, which must be sent within a keepalive at this rate."""
MAX_MESSAGES_IN_FLIGHT = 100


class _Message(NamedTuple):
    topic: str
    payload: bytes
    retain: bool

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.payload)


class MqttWindow:
    """Messages are added on any thread; only the network thread passes them to paho."""

    def __init__(self, client: Client, wake: Callable[[], None]) -> None:
        self._max_messages = 1
        self._max_bytes = 0
        self._client = client
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[_Message] = deque()
        self._unsent = 0
        self._flying: deque[tuple[MQTTMessageInfo, int]] = deque()
        self._flying_bytes = 0

    def open(self, keepalive: int, receive_maximum: int) -> None:
        """Take the limits that were agreed with the broker."""
        self._max_bytes = SLOWEST_UPLINK * keepalive
        self._max_messages = min(receive_maximum, MAX_MESSAGES_IN_FLIGHT)

    def put(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Queue a message; return False if the queue is full."""
        message = _Message(topic, payload, retain)
        with self._lock:
            if self._unsent and self._unsent + message.size > MAX_UNSENT:
                return False
            self._unsent += message.size
            self._waiting.append(message)
            # Behind another message there is no need: the wake-up for that one covers this one too.
            is_alone = len(self._waiting) == 1
        if is_alone:
            self._wake()
        return True

    @property
    def is_empty(self) -> bool:
        """Whether the broker has acknowledged everything."""
        return self._unsent == 0

    def feed(self) -> None:
        """Remove acknowledged messages, and send as many as may be in flight."""
        self._take_acknowledged()
        while self._waiting and self._has_room(self._waiting[0].size):
            message = self._waiting.popleft()
            info = self._client.publish(message.topic, message.payload, qos=1, retain=message.retain)
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                # The connection has just ended; the queue is dropped with it.
                return
            self._flying.append((info, message.size))
            self._flying_bytes += message.size

    def _take_acknowledged(self) -> None:
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
        return len(self._flying) < self._max_messages and self._flying_bytes + size <= self._max_bytes
