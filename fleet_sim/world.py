"""A fleet in one process under a virtual clock: the same machines and the same protocol as the real thing."""

from __future__ import annotations

import gc
import heapq
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sojourn.memory_link import MemoryBroker, MemoryLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sojourn.link import Link
    from sojourn.machine import Event
    from sojourn.memory_link import Faults
    from sojourn.node import Node


NEW_OBJECTS = 50_000
"""So many more objects than before, and Python looks for cycles among them. Without being asked it does after 700."""


@contextmanager
def _rare_collections() -> Iterator[None]:
    """What a fleet makes is given back at once or kept for long: looking through it again and again finds nothing."""
    usual = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class World:
    """A virtual clock with things that happen on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Let something happen after a while."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, action))

    def broker(self, faults: Faults | None = None) -> MemoryBroker:
        """A broker that lives by this clock."""
        return MemoryBroker(self.later, faults)

    def run(self, until: Callable[[], bool], limit: float = 1e6) -> bool:
        """Let things happen until a condition holds; False when nothing more happens or time runs out first."""
        queue, pop = self._queue, heapq.heappop
        with _rare_collections():
            while not until():
                if not queue or queue[0][0] > limit:
                    return False
                self.now, _, action = pop(queue)
                action()
        return True


class SimulatedNode:
    """Runs a node on a world's clock, as `sojourn.driver.Driver` does in real time."""

    def __init__(self, world: World, node: Node) -> None:
        self.world = world
        self.node = node
        self._alive = False
        self._wake: float | None = None

    def start(self) -> None:
        """Start the node and open its links."""
        self._alive = True
        self.node.start(self.world.now, self.report)
        for link in dict.fromkeys(self.node.links.values()):
            link.open(self, self.node.filters(link), self.node.will())
        self._schedule()

    def kill(self) -> None:
        """End at once, as kill -9 does: nothing is said and nothing is saved."""
        self._alive = False
        for link in set(self.node.links.values()):
            if isinstance(link, MemoryLink):
                link.cut()

    def link_up(self, link: Link) -> None:
        """The link is connected."""
        self.node.link_up(link, self.world.now)

    def link_down(self, link: Link, reason: str) -> None:
        """Links in memory do not go down by themselves."""

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """A message came."""
        if self._alive:
            self.node.arrived(link, topic, payload, self.world.now)
            self._schedule()

    def report(self, event: Event) -> None:
        """A worker says how it goes."""
        self.world.later(0.0, lambda: self._inject(event))

    def _inject(self, event: Event) -> None:
        if self._alive:
            self.node.inject(event, self.world.now)
            self._schedule()

    def _tick(self) -> None:
        self._wake = None
        if self._alive:
            self.node.tick(self.world.now)
            self._schedule()

    def _schedule(self) -> None:
        wake = self.node.wake_at()
        if wake is None or (self._wake is not None and self._wake <= wake):
            return
        self._wake = wake
        self.world.later(max(0.0, wake - self.world.now), self._tick)
