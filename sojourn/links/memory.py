"""A broker in memory under a virtual clock, which can lose, repeat, delay and reorder messages."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from sojourn.links.link import PORTABLE_PAYLOAD, Listener, Will
from sojourn.profile import LinkProfile

Later = Callable[[float, Callable[[], None]], None]

Subscriber = TypeVar("Subscriber")
Shape = tuple[int, tuple[int, ...]]
"""The number of levels of a filter, and which of them it names; the others are `+`."""


class Subscriptions(Generic[Subscriber]):
    """Filters by their shape, of which there are few, and then by the levels that they name.

    Nearly all are inbox filters, whose only wildcard is the last level. They are indexed by the prefix before it.
    """

    def __init__(self) -> None:
        self._inboxes: dict[str, dict[Subscriber, int]] = {}
        self._shapes: dict[Shape, dict[tuple[str, ...], dict[Subscriber, int]]] = {}
        self._held: dict[Subscriber, dict[str, None]] = {}
        self._count = 0

    def add(self, subscriber: Subscriber, filters: Iterable[str]) -> None:
        """Subscribe to topics that match one of these filters."""
        self._count += 1
        held = self._held.setdefault(subscriber, {})
        for one in filters:
            before = _inbox_prefix(one)
            if before is not None:
                self._inboxes.setdefault(before, {})[subscriber] = self._count
            else:
                shape, names = _shape(one)
                self._shapes.setdefault(shape, {}).setdefault(names, {})[subscriber] = self._count
            held[one] = None

    def remove(self, subscriber: Subscriber) -> bool:
        """Remove all filters of a subscriber; return whether it had any."""
        held = self._held.pop(subscriber, None)
        for one in held or ():
            before = _inbox_prefix(one)
            if before is not None:
                _discard(self._inboxes, before, subscriber)
            else:
                shape, names = _shape(one)
                _discard(self._shapes[shape], names, subscriber)
        return held is not None

    def matching(self, topic: str) -> list[Subscriber]:
        """Return the subscribers of this topic, each once, in the order in which they subscribed."""
        found = self._inboxes.get(topic.rpartition("/")[0], {})
        length = topic.count("/") + 1
        for (count, named), subscribers in self._shapes.items():
            if count == length:
                levels = topic.split("/")
                found = found | subscribers.get(tuple([levels[at] for at in named]), {})
        return sorted(found, key=found.__getitem__) if len(found) > 1 else list(found)


Key = TypeVar("Key")


def _discard(subscribers: dict[Key, dict[Subscriber, int]], key: Key, subscriber: Subscriber) -> None:
    del subscribers[key][subscriber]
    if not subscribers[key]:
        del subscribers[key]


def _inbox_prefix(one: str) -> str | None:
    """Return the prefix of a filter whose only wildcard is its last level."""
    before, _, last = one.rpartition("/")
    return before if last == "+" and before and "+" not in before.split("/") else None


def _shape(one: str) -> tuple[Shape, tuple[str, ...]]:
    levels = one.split("/")
    named = tuple(at for at, level in enumerate(levels) if level != "+")
    return (len(levels), named), tuple(levels[at] for at in named)


@dataclass(frozen=True)
class Faults:
    """The faults of a link: shares of lost and repeated messages, and their delay and its spread in seconds."""

    loss: float = 0.0
    repeat: float = 0.0
    delay: float = 0.001
    spread: float = 0.0
    seed: int = 0


class MemoryBroker:
    """Topics, wildcards, retained messages and wills. `later(delay, action)` is its clock."""

    def __init__(self, later: Later, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.later = later
        self.payload = 0
        self._random = random.Random(self.faults.seed)  # faults, not secrets
        self._links: Subscriptions[MemoryLink] = Subscriptions()
        self._retained: dict[str, bytes] = {}
        self.on_unmatched: Callable[[str], None] | None = None
        """Called with a topic that has no subscriber: a hibernated receiver can return now."""

    def join(self, link: MemoryLink) -> None:
        """Connect a link and send it the retained messages."""
        self._links.add(link, link.filters)
        for topic, payload in self._retained.items():
            if link.matches(topic):
                self._carry(link, topic, payload, lossy=False)

    def rejoin(self, link: MemoryLink) -> None:
        """Connect a link in place of an earlier one of the same client, which received the retained messages."""
        self._links.add(link, link.filters)

    def leave(self, link: MemoryLink, will: Will | None) -> None:
        """Disconnect a link, cleanly (no will) or not."""
        if self._links.remove(link) and will:
            self.publish(will.topic, will.payload, retain=True)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Deliver a message to all subscribers, with this broker's faults; retained ones always arrive, in order."""
        self.payload += len(payload)
        if retain and payload:
            self._retained[topic] = payload
        elif retain:
            self._retained.pop(topic, None)
        subscribers = self._links.matching(topic)
        if not subscribers and self.on_unmatched:
            self.on_unmatched(topic)
            subscribers = self._links.matching(topic)
        for link in subscribers:
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
    """One direction of a line: payloads occupy it one after another for their bytes, then travel for its latency."""

    def __init__(self, later: Later, rate: float, latency: float) -> None:
        self._later, self._rate, self._latency = later, rate, latency
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.busy = False
        """Whether a payload occupies the line."""

    def seconds(self, size: int) -> float:
        """Return the seconds that `size` bytes take on an idle line."""
        return size / self._rate + self._latency

    def send(self, size: int, arrive: Callable[[], None]) -> None:
        """Send `size` bytes after all earlier ones; `arrive` is called when the last one has arrived."""
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
    """One connection to a broker in memory: immediate, or over a line with its bandwidth and latency.

    Over a line, a payload from one client to another takes: its bytes at the sender's `up`, the sender's latency, the
    broker's delay, its bytes at the receiver's `down`, the receiver's latency; and longer behind a queue. Only
    payloads count: topics and the headers of MQTT and TCP do not.
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

    def resume(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Continue an earlier connection of this client."""
        self._listener, self._will = listener, will
        self.filters = tuple(filters)
        self.broker.rejoin(self)

    def hibernate(self, listener: Listener) -> None:
        """Disconnect without a will; messages in transit go to this listener."""
        self._listener = listener
        self.broker.leave(self, None)

    @property
    def idle(self) -> bool:
        """Whether nothing is on the line."""
        return not (self.up and self.up.busy) and not (self.down and self.down.busy)

    def matches(self, topic: str) -> bool:
        """Return whether a topic matches one of the subscribed filters."""
        parts = topic.split("/")
        return any(
            len(wanted) == len(parts) and all(w in ("+", p) for w, p in zip(wanted, parts, strict=True))
            for wanted in (one.split("/") for one in self.filters)
        )

    def carry(self, topic: str, payload: bytes) -> None:
        """Take a message from the broker."""
        if self.down is None:
            self.deliver(topic, payload)
        elif self._listener:
            self.down.send(len(payload), lambda: self.deliver(topic, payload))

    def deliver(self, topic: str, payload: bytes) -> None:
        """Pass an arrived message to the listener, if there still is one."""
        if self._listener:
            self._listener.arrived(self, topic, payload)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send a message to all subscribers, unless the link is closed."""
        if self._listener and self.up is None:
            self.broker.publish(topic, payload, retain=retain)
        elif self._listener and self.up is not None:
            self.up.send(len(payload), lambda: self._arrive(topic, payload, retain=retain))

    def _arrive(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Publish a sent message at the broker, unless the line was cut meanwhile."""
        if not self._lost:
            self.broker.publish(topic, payload, retain=retain)

    def transfer(self, into: MemoryLink | None, size: int, deliver: Callable[[], None]) -> None:
        """Send `size` bytes to one other link of this broker, without faults; `deliver` is called on arrival.

        It takes as long as `publish` takes to a subscriber. Without a receiver the bytes end at the broker.
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
        """Take `size` bytes from the broker: `deliver` is called on arrival, if there still is a listener."""
        if self._listener is None:
            return
        self.moved(0, size)
        if self.down is None:
            deliver()
        else:
            self.down.send(size, lambda: deliver() if self._listener else None)

    def moved(self, sent: int, received: int) -> None:
        """Count bytes of a transfer; for subclasses that count traffic."""

    def cut(self) -> None:
        """Vanish, with everything on the line: the broker publishes the will."""
        self._listener = None
        self._lost = True
        self.broker.leave(self, self._will)

    def close(self) -> None:
        """Disconnect cleanly, so that the will is not published."""
        self._listener = None
        self.broker.leave(self, None)
