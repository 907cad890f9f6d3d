"""A broker in memory, under somebody else's clock, that can lose, repeat, delay and reorder what it carries."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sojourn.links.link import PORTABLE_PAYLOAD
from sojourn.links.subscriptions import Subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sojourn.links.link import Listener, Will
    from sojourn.profile import LinkProfile

    Later = Callable[[float, Callable[[], None]], None]


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

    def __init__(self, later: Later, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.later = later
        self.payload = 0
        self._random = random.Random(self.faults.seed)  # faults, not secrets
        self._links: Subscriptions[MemoryLink] = Subscriptions()
        self._retained: dict[str, bytes] = {}
        self.unheard: Callable[[str], None] | None = None
        """Called with a topic that nobody listens to: whoever is to hear it may come back now."""

    def join(self, link: MemoryLink) -> None:
        """A link connects: it hears what is retained."""
        self._links.add(link, link.filters)
        for topic, payload in self._retained.items():
            if link.wants(topic):
                self._carry(link, topic, payload, lossy=False)

    def come_back(self, link: MemoryLink) -> None:
        """A link goes on where another of the same client stopped: it has heard what is retained."""
        self._links.add(link, link.filters)

    def leave(self, link: MemoryLink, will: Will | None) -> None:
        """A link is gone, in good order (no will) or not."""
        if self._links.remove(link) and will:
            self.publish(will.topic, will.payload, retain=True)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Carry a message to all who want it, with this broker's faults; what is retained arrives, and in order."""
        self.payload += len(payload)
        if retain and payload:
            self._retained[topic] = payload
        elif retain:
            self._retained.pop(topic, None)
        wanting = self._links.wanting(topic)
        if not wanting and self.unheard:
            self.unheard(topic)
            wanting = self._links.wanting(topic)
        for link in wanting:
            self._carry(link, topic, payload, lossy=not retain)

    def _carry(self, link: MemoryLink, topic: str, payload: bytes, *, lossy: bool) -> None:
        faults, draw = self.faults, self._random.random
        if not lossy or not (faults.loss or faults.repeat or faults.spread):
            self.later(faults.delay, lambda: link.carry(topic, payload))
            return
        copies = 1
        if faults.loss or faults.repeat:
            copies = 0 if draw() < faults.loss else 1 + (draw() < faults.repeat)
        for _ in range(copies):
            delay = faults.delay + (faults.spread * draw() if faults.spread else 0.0)
            self.later(delay, lambda: link.carry(topic, payload))


class Lane:
    """One direction of a line: a payload occupies it for its bytes, the next one waits, and each is then under way."""

    def __init__(self, later: Later, rate: float, latency: float) -> None:
        self._later, self._rate, self._latency = later, rate, latency
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.busy = False
        """Whether something is on the line."""

    def seconds(self, size: int) -> float:
        """How long so many bytes are under way when nothing is before them."""
        return size / self._rate + self._latency

    def send(self, size: int, arrive: Callable[[], None]) -> None:
        """Send so many bytes after all that was sent before; `arrive` is called when the last one is there."""
        self._waiting.append((size, arrive))
        if not self.busy:
            self._next()

    def _next(self) -> None:
        self.busy = bool(self._waiting)
        if self._waiting:
            size, arrive = self._waiting.popleft()
            self._later(size / self._rate, lambda: self._sent(arrive))

    def _sent(self, arrive: Callable[[], None]) -> None:
        self._later(self._latency, arrive)
        self._next()


class MemoryLink:
    """One connection to a broker in memory: at once, or over a line with its bandwidth and latency.

    Over a line a payload takes, from one client to another: its bytes at the sender's `up`, the sender's latency, the
    broker's delay, its bytes at the receiver's `down`, the receiver's latency; and longer where others are before it.
    Only payloads count: topics and the headers of MQTT and TCP do not.
    """

    def __init__(
        self, broker: MemoryBroker, payload_limit: int = PORTABLE_PAYLOAD, profile: LinkProfile | None = None
    ) -> None:
        self.payload_limit = payload_limit
        self.profile = profile
        self.broker = broker
        self.up = Lane(broker.later, profile.up, profile.latency) if profile else None
        self.down = Lane(broker.later, profile.down, profile.latency) if profile else None
        self._lost = False
        self._listener: Listener | None = None
        self.filters: tuple[str, ...] = ()
        self._will: Will | None = None

    def open(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Connect, which takes no time in memory."""
        self._listener, self._will = listener, will
        self.filters = tuple(filters)
        self.broker.join(self)
        listener.link_up(self)

    def go_on(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Be the connection that a client has had all the time."""
        self._listener, self._will = listener, will
        self.filters = tuple(filters)
        self.broker.come_back(self)

    def put_away(self, listener: Listener) -> None:
        """Leave without a word; what is still on its way to us comes to this listener."""
        self._listener = listener
        self.broker.leave(self, None)

    @property
    def idle(self) -> bool:
        """Whether nothing is on the line."""
        return not (self.up and self.up.busy) and not (self.down and self.down.busy)

    def wants(self, topic: str) -> bool:
        """Whether a topic fits one of the filters that are subscribed to."""
        parts = topic.split("/")
        return any(
            len(wanted) == len(parts) and all(w in ("+", p) for w, p in zip(wanted, parts, strict=True))
            for wanted in (one.split("/") for one in self.filters)
        )

    def carry(self, topic: str, payload: bytes) -> None:
        """The broker sends a message to us."""
        if self.down is None:
            self.deliver(topic, payload)
        elif self._listener:
            self.down.send(len(payload), lambda: self.deliver(topic, payload))

    def deliver(self, topic: str, payload: bytes) -> None:
        """A message arrives, if anybody still listens."""
        if self._listener:
            self._listener.arrived(self, topic, payload)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message to all subscribers, unless the link is closed."""
        if self._listener and self.up is None:
            self.broker.publish(topic, payload, retain=retain)
        elif self._listener and self.up is not None:
            self.up.send(len(payload), lambda: self._arrive(topic, payload, retain=retain))

    def _arrive(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """A message that we sent reaches the broker, unless the line was cut meanwhile."""
        if not self._lost:
            self.broker.publish(topic, payload, retain=retain)

    def hand(self, into: MemoryLink | None, size: int, deliver: Callable[[], None]) -> None:
        """Send so many bytes to one other link of this broker, without faults; `deliver` is called when they are there.

        It takes as long as `publish` takes to a subscriber. What is for nobody goes as far as the broker.
        """
        if self._listener is None:
            return
        self.moved(size, 0)
        if self.up is None:
            self._pass_on(into, size, deliver)
        else:
            self.up.send(size, lambda: None if self._lost else self._pass_on(into, size, deliver))

    def _pass_on(self, into: MemoryLink | None, size: int, deliver: Callable[[], None]) -> None:
        self.broker.payload += size
        if into is not None:
            self.broker.later(self.broker.faults.delay, partial(into.take, size, deliver))

    def take(self, size: int, deliver: Callable[[], None]) -> None:
        """The broker sends so many bytes to us: `deliver` is called when they are here, if anybody still listens."""
        if self._listener is None:
            return
        self.moved(0, size)
        if self.down is None:
            deliver()
        else:
            self.down.send(size, lambda: deliver() if self._listener else None)

    def moved(self, sent: int, came: int) -> None:
        """Bytes that would have gone over this link: counted by those who count."""

    def cut(self) -> None:
        """Vanish without a word, and all that is on the line with us: the broker publishes the will."""
        self._listener = None
        self._lost = True
        self.broker.leave(self, self._will)

    def close(self) -> None:
        """Disconnect in good order, so that no last will is published."""
        self._listener = None
        self.broker.leave(self, None)
