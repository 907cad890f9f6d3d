"""A fleet in one process under a virtual clock: the same machines and the same protocol as the real thing."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from sojourn.memory_link import MemoryBroker, MemoryLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.link import Link
    from sojourn.machine import Event
    from sojourn.memory_link import Faults
    from sojourn.node import Node


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
        while not until():
            if not self._queue or self._queue[0][0] > limit:
                return False
            self.now, _, action = heapq.heappop(self._queue)
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
        self._do(lambda: self.node.arrived(link, topic, payload, self.world.now))

    def report(self, event: Event) -> None:
        """A worker says how it goes."""
        self.world.later(0.0, lambda: self._do(lambda: self.node.inject(event, self.world.now)))

    def _do(self, action: Callable[[], None]) -> None:
        if self._alive:
            action()
            self._schedule()

    def _schedule(self) -> None:
        wake = self.node.wake_at()
        if wake is None or (self._wake is not None and self._wake <= wake):
            return
        self._wake = wake
        self.world.later(max(0.0, wake - self.world.now), self._tick)

    def _tick(self) -> None:
        self._wake = None
        self._do(lambda: self.node.tick(self.world.now))
