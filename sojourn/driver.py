"""Runs a node in real time: one thread that waits on one queue, fed by links and workers."""

from __future__ import annotations

import logging
import queue
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.link import Link
    from sojourn.machine import Event
    from sojourn.node import Node

LONGEST_WAIT = 5.0
log = logging.getLogger("sojourn")


class Driver:
    """Listens to a node's links, and performs everything on the thread that calls `run`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._queue: queue.SimpleQueue[Callable[[float], None] | None] = queue.SimpleQueue()

    def link_up(self, link: Link) -> None:
        """The link is connected."""
        self._queue.put(lambda now: self.node.link_up(link, now))

    def link_down(self, link: Link, reason: str) -> None:
        """The link was lost: requests are resent anyway, so there is nothing to do but wait."""

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """A message came."""
        self._queue.put(lambda now: self.node.arrived(link, topic, payload, now))

    def report(self, event: Event) -> None:
        """A worker says how it goes."""
        self._queue.put(lambda now: self.node.inject(event, now))

    def call(self, action: Callable[[float], None]) -> None:
        """Do something with the node on its own thread."""
        self._queue.put(action)

    def stop(self) -> None:
        """Leave `run` when what is queued is done. May be called from any thread or signal handler."""
        self._queue.put(None)

    def run(self) -> None:
        """Run until stopped, then close the node in good order."""
        self.node.start(time.monotonic(), self.report)
        for link in dict.fromkeys(self.node.links.values()):
            link.open(self, self.node.filters(link), self.node.will())
        try:
            while self._step():
                pass
        finally:
            self.node.close()

    def _step(self) -> bool:
        wake = self.node.wake_at()
        wait = LONGEST_WAIT if wake is None else min(max(wake - time.monotonic(), 0), LONGEST_WAIT)
        try:
            action = self._queue.get(timeout=wait)
        except queue.Empty:
            self.node.tick(time.monotonic())
            return True
        if action is None:
            return False
        now = time.monotonic()
        action(now)
        if wake is not None and wake <= now:
            self.node.tick(now)
        return True


def run_until_signal(driver: Driver) -> None:
    """Run until Ctrl-C or SIGTERM, then stop cleanly; a second Ctrl-C ends it at once."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        driver.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    driver.run()
