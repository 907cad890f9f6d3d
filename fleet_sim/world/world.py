"""A fleet in one process under a virtual clock: the same machines and the same protocol as the real thing."""

from __future__ import annotations

import gc
import heapq
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

from sojourn.links.link import Listener
from sojourn.links.memory import Faults, MemoryBroker, MemoryLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sojourn.links.link import Link
    from sojourn.links.local_packet import LocalPacket
    from sojourn.node.at_rest import NodeAtRest
    from sojourn.node.machine import Event
    from sojourn.node.node import Node

    Happening = tuple[float, int, Callable[[], None]]
    """When it happens, its number in the order in which things were asked for, and what is called."""

OFTEN = (0.0, Faults().delay)
"""The delays of nearly all that happens: what a worker reports, and a message on its way."""

NEW_OBJECTS = 500_000
"""After so many new objects Python looks for cycles among them; its usual number is 700. Nearly all of them stay, so
that a look finds next to nothing: with 50,000 a fifth of the time of 100,000 estimations went into it."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for cycles rarely: what a fleet makes is freed at once or kept for long, and cycles are few."""
    usual = gc.get_threshold()
    if usual[0] == NEW_OBJECTS:  # somebody around us has asked for it
        yield
        return
    gc.set_threshold(NEW_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def no_collections() -> Iterator[None]:
    """Let Python look for no cycles: while something large is written down, nothing becomes one."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()


class World:
    """A virtual clock, and what happens on it; at the same time, in the order in which it was asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[Happening] = []
        self._soon: tuple[deque[Happening], ...] = tuple(deque() for _ in OFTEN)
        """A queue for each of the usual delays: what is asked for first happens first, so no sorting is needed."""
        self._queues = dict(zip(OFTEN, self._soon, strict=True))
        self._count = 0

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` when so many seconds have passed on this clock."""
        self._count += 1
        happening = (self.now + delay, self._count, action)
        usual = self._queues.get(delay)
        if usual is None:
            heapq.heappush(self._queue, happening)
        else:
            usual.append(happening)

    def broker(self, faults: Faults | None = None) -> MemoryBroker:
        """A broker that lives by this clock."""
        return MemoryBroker(self.later, faults)

    def run(self, until: Callable[[], bool], limit: float = 1e6) -> bool:
        """Let things happen until a condition holds; False when nothing more happens or time runs out first."""
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


class Doorbell(Listener, Protocol):
    """Takes what was on its way to a node when it was put away."""

    def take(self, packet: LocalPacket) -> None:
        """A packet of a node in the same process came."""


class SimulatedNode:
    """Runs a node on a world's clock, as `sojourn.node.driver.Driver` does in real time."""

    def __init__(self, world: World, node: Node) -> None:
        self.world = world
        self.node = node
        self._alive = False
        self._wake: float | None = None
        self._reports = 0
        """Reports of workers that are on their way: they arrive in this instant, before it is time to wake."""
        self._doorbell: Doorbell | None = None
        """Who gets what comes after it was put away."""

    def start(self) -> None:
        """Start the node and open its links."""
        self._alive = True
        self.node.start(self.world.now, self.report)
        for link in dict.fromkeys(self.node.links.values()):
            link.open(self, self.node.filters(link), self.node.will())
        self._schedule()

    def go_on(self, rest: NodeAtRest) -> None:
        """Be a node that was put away, as if it had run all the time."""
        self._alive = True
        for link in dict.fromkeys(self.node.links.values()):
            assert isinstance(link, MemoryLink)  # noqa: S101
            self.node.epoch = rest.epoch
            link.go_on(self, self.node.filters(link), self.node.will())
        self.node.go_on(rest, self.report)

    def put_away(self, doorbell: Doorbell) -> NodeAtRest | None:
        """End without a trace, and say what is needed to go on; None while something is under way or planned.

        What is still on its way here comes to `doorbell`.
        """
        links = [link for link in dict.fromkeys(self.node.links.values()) if isinstance(link, MemoryLink)]
        if not self._alive or self._wake is not None or self._reports or not all(link.idle for link in links):
            return None
        if (rest := self.node.put_away()) is None:
            return None
        self._alive, self._doorbell = False, doorbell
        for link in links:
            link.put_away(doorbell)
        return rest

    def kill(self) -> None:
        """End at once, as kill -9 does: nothing is sent and nothing is saved."""
        self._alive = False
        for link in set(self.node.links.values()):
            if isinstance(link, MemoryLink):
                link.cut()

    def link_up(self, link: Link) -> None:
        """The link is connected."""
        self.node.link_up(link, self.world.now)

    def link_down(self, link: Link, reason: str) -> None:
        """Links in memory do not go down by themselves."""

    @property
    def alive(self) -> bool:
        """Whether the node runs."""
        return self._alive

    def hear(self, what: Callable[[float], None]) -> None:
        """Let the node know of something that has come to it, if it still runs."""
        if self._alive:
            what(self.world.now)
            self._schedule()

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """A message came."""
        if self._alive:
            self.node.arrived(link, topic, payload, self.world.now)
            self._schedule()

    def take(self, link: Link, packet: LocalPacket) -> None:
        """A packet of a node in the same process came."""
        if self._alive:
            self.node.take(link, packet, self.world.now)
            self._schedule()
        elif self._doorbell is not None:
            self._doorbell.take(packet)

    def report(self, event: Event) -> None:
        """A worker reports: the node hears it in this instant, after what was due before."""
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
