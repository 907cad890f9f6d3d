"""A fleet in one process on a virtual clock, with the same machines and protocol as a real one."""

from __future__ import annotations

import gc
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

from sojourn.links.link import Link, Listener
from sojourn.links.memory import Faults, MemoryBroker, MemoryLink
from sojourn.node.machine import Event
from sojourn.node.node import Node
from sojourn.node.transport import Delivery
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch

ScheduledEvent = tuple[float, int, Callable[[], None]]
"""The time of an event, its sequence number, and the function to call."""

COMMON_DELAYS = (0.0, Faults().delay)
"""The delays of nearly all events: reports of workers, and messages in transit."""

NEW_OBJECTS = 500_000
"""Python searches for reference cycles after this many new objects; its default is 700. Nearly all objects here are
long-lived, so a search finds almost nothing: at 50,000 it took a fifth of the time of 100,000 estimations.
"""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Make garbage collection rare: a simulation's objects are freed at once or live long, and cycles are few."""
    usual = gc.get_threshold()
    if usual[0] == NEW_OBJECTS:  # an outer context has already set it
        yield
        return
    gc.set_threshold(NEW_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection: writing a large object creates no cycles."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()


class World:
    """A virtual clock with a queue of events; simultaneous events run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[ScheduledEvent] = []
        self._soon: tuple[deque[ScheduledEvent], ...] = tuple(deque() for _ in COMMON_DELAYS)
        """A queue per common delay: each is already in order, so no sorting is needed."""
        self._queues = dict(zip(COMMON_DELAYS, self._soon, strict=True))
        self._count = 0

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` after this many seconds on the virtual clock."""
        self._count += 1
        event = (self.now + delay, self._count, action)
        usual = self._queues.get(delay)
        if usual is None:
            heapq.heappush(self._queue, event)
        else:
            usual.append(event)

    def broker(self, faults: Faults | None = None) -> MemoryBroker:
        """Return a broker on this clock."""
        return MemoryBroker(self.later, faults)

    def run(self, until: Callable[[], bool], limit: float = 1e6) -> bool:
        """Run events until a condition holds; return False if no events are left or the time limit is reached."""
        with rare_collections():
            queue, (at_once, soon) = self._queue, self._soon
            while not until():
                first = at_once if at_once and not (soon and soon[0] < at_once[0]) else soon
                if queue and not (first and first[0] < queue[0]):
                    if queue[0][0] > limit:
                        return False
                    self.now, _, action = heapq.heappop(queue)
                elif first and first[0][0] <= limit:
                    self.now, _, action = first.popleft()
                else:
                    return False
                action()
        return True


class NodeSnapshot(NamedTuple):
    """The state of an idle node, from which another `Node` of this name can resume the same boot."""

    epoch: Epoch
    packets: int
    """The number of the last packet that it sent."""
    next_sweep: float
    snapshot: bytes = b""
    """The durable state of its machine; empty if it never had any."""
    sent_inline: dict[tuple[Address, bytes], None] | None = None


class WakeListener(Listener, Protocol):
    """Receives messages that were in transit to a node when it hibernated."""

    def deliver(self, delivery: Delivery) -> None:
        """Deliver a message of a node in the same process."""


class SimulatedNode:
    """Runs a node on a virtual clock, as `sojourn.node.driver.Driver` does in real time."""

    def __init__(self, world: World, node: Node) -> None:
        self.world = world
        self.node = node
        self._alive = False
        self._wake: float | None = None
        self._reports = 0
        """Worker reports in transit: they arrive at the current time, before timers fire."""
        self._wake_listener: WakeListener | None = None
        """The receiver of messages that arrive after hibernation."""

    def start(self) -> None:
        """Start the node and open its links."""
        self._alive = True
        self.node.start(self.world.now, self.report)
        for link in dict.fromkeys(self.node.links.values()):
            link.open(self, self.node.reception.filters(link), self.node.will())
        self._schedule()

    def resume(self, saved: NodeSnapshot) -> None:
        """Resume a hibernated node as if it had run all the time."""
        self._alive = True
        node = self.node
        node.report, node.epoch, node.next_sweep = self.report, saved.epoch, saved.next_sweep
        node.sent_inline = saved.sent_inline or {}
        if saved.snapshot:
            node.machine.restore(saved.snapshot)
        for link in dict.fromkeys(node.links.values()):
            assert isinstance(link, MemoryLink)  # noqa: S101
            link.resume(self, node.reception.filters(link), node.will())
        node.packets = saved.packets

    def hibernate(self, wake_listener: WakeListener) -> NodeSnapshot | None:
        """Stop without a notice, and return the state needed to resume; None if work is pending or scheduled.

        The machine's state that is not durable is lost: the caller makes sure that there is none. Messages in transit
        are delivered to `wake_listener`.
        """
        links = [link for link in dict.fromkeys(self.node.links.values()) if isinstance(link, MemoryLink)]
        if not self._alive or self._wake is not None or self._reports or not all(link.idle for link in links):
            return None
        node = self.node
        if not node.idle:
            return None
        self._alive, self._wake_listener = False, wake_listener
        for link in links:
            link.hibernate(wake_listener)
        return NodeSnapshot(
            node.epoch, node.packets, node.next_sweep, node.machine.snapshot(), node.sent_inline or None
        )

    def kill(self) -> None:
        """Stop as with kill -9: nothing is sent and nothing is saved."""
        self._alive = False
        for link in set(self.node.links.values()):
            if isinstance(link, MemoryLink):
                link.cut()

    def link_up(self, link: Link) -> None:
        """Handle a connected link."""
        self.node.link_up(link, self.world.now)

    def link_down(self, link: Link, reason: str) -> None:
        """Do nothing: links in memory never go down by themselves."""

    @property
    def alive(self) -> bool:
        """Whether the node runs."""
        return self._alive

    def run_if_alive(self, what: Callable[[float], None]) -> None:
        """Call `what` with the current time, if the node still runs."""
        if self._alive:
            what(self.world.now)
            self._schedule()

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """Handle a message."""
        if self._alive:
            self.node.arrived(link, topic, payload, self.world.now)
            self._schedule()

    def deliver(self, delivery: Delivery) -> None:
        """Deliver a message of a node in the same process."""
        if self._alive:
            self.node.deliver(delivery, self.world.now)
            self._schedule()
        elif self._wake_listener is not None:
            self._wake_listener.deliver(delivery)

    def report(self, event: Event) -> None:
        """Pass a worker's report to the node at the current time, after events that are already due."""
        self._reports += 1
        self.world.later(0.0, partial(self._inject, event))

    def _inject(self, event: Event) -> None:
        self._reports -= 1
        if self._alive:
            self.node.inject(event, self.world.now)
            self._schedule()

    def _tick(self) -> None:
        self._wake = None
        if self._alive:
            if self.node.is_due(self.world.now):
                self.node.tick(self.world.now)
            self._schedule()

    def _schedule(self) -> None:
        wake = self.node.wake_at()
        if wake is None or (self._wake is not None and self._wake <= wake):
            return
        if self._reports and wake <= self.world.now:
            return
        self._wake = wake
        self.world.later(max(0.0, wake - self.world.now), self._tick)
