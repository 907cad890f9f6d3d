"""A broker in memory, under somebody else's clock, that can lose, repeat, delay and reorder what it carries."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.link import PORTABLE_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sojourn.link import Listener, Will


@dataclass(frozen=True)
class Faults:
    """How bad a link is: shares of messages that are lost or repeated, and the spread of their delay in seconds."""

    loss: float = 0.0
    repeat: float = 0.0
    delay: float = 0.001
    spread: float = 0.0
    seed: int = 0


class MemoryBroker:
    """Topics, wildcards, retained messages and wills. `later(delay, action)` is the clock it lives by."""

    def __init__(self, later: Callable[[float, Callable[[], None]], None], faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.later = later
        self.payload = 0
        self._random = random.Random(self.faults.seed)  # faults, not secrets
        self._links: list[MemoryLink] = []
        self._retained: dict[str, bytes] = {}

    def join(self, link: MemoryLink) -> None:
        """A link connects: it hears what is retained."""
        self._links.append(link)
        for topic, payload in self._retained.items():
            if link.wants(topic):
                self._carry(link, topic, payload, lossy=False)

    def leave(self, link: MemoryLink, will: Will | None) -> None:
        """A link is gone, in good order (no will) or not."""
        if link in self._links:
            self._links.remove(link)
            if will:
                self.publish(will.topic, will.payload, retain=True)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Carry a message to all who want it, with this broker's faults; what is retained arrives, and in order."""
        self.payload += len(payload)
        if retain:
            self._retained[topic] = payload
        for link in self._links:
            if link.wants(topic):
                self._carry(link, topic, payload, lossy=not retain)

    def _carry(self, link: MemoryLink, topic: str, payload: bytes, *, lossy: bool) -> None:
        faults, draw = self.faults, self._random.random
        copies = 1
        if lossy and (faults.loss or faults.repeat):
            copies = 0 if draw() < faults.loss else 1 + (draw() < faults.repeat)
        for _ in range(copies):
            delay = faults.delay + (faults.spread * draw() if lossy and faults.spread else 0.0)
            self.later(delay, lambda: link.deliver(topic, payload))


class MemoryLink:
    """One connection to a broker in memory."""

    def __init__(self, broker: MemoryBroker, payload_limit: int = PORTABLE_PAYLOAD) -> None:
        self.payload_limit = payload_limit
        self._broker = broker
        self._listener: Listener | None = None
        self._filters: list[list[str]] = []
        self._will: Will | None = None

    def open(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Connect at once."""
        self._listener, self._will = listener, will
        self._filters = [one.split("/") for one in filters]
        self._broker.join(self)
        listener.link_up(self)

    def wants(self, topic: str) -> bool:
        """Whether one of our filters fits."""
        parts = topic.split("/")
        return any(
            len(wanted) == len(parts) and all(w in ("+", p) for w, p in zip(wanted, parts, strict=True))
            for wanted in self._filters
        )

    def deliver(self, topic: str, payload: bytes) -> None:
        """A message arrives, if anybody still listens."""
        if self._listener:
            self._listener.arrived(self, topic, payload)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, unless closed."""
        if self._listener:
            self._broker.publish(topic, payload, retain=retain)

    def cut(self) -> None:
        """Vanish without a word: the broker publishes the will."""
        self._listener = None
        self._broker.leave(self, self._will)

    def close(self) -> None:
        """Disconnect in good order."""
        self._listener = None
        self._broker.leave(self, None)
