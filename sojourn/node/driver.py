"""Runs a node in real time: one thread that waits on one queue, fed by links and workers."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from sojourn.links.link import Link
from sojourn.node.machine import Event, earliest
from sojourn.node.node import Node
from sojourn.notify import Notifier
from sojourn.protocol.topics import Role

LONGEST_WAIT = 5.0
MAX_UNREAD_BYTES = 64 << 20
"""Bytes of messages that may wait to be read: links read faster than a flooded node."""
log = logging.getLogger("sojourn")
_Waiting: TypeAlias = "Callable[[float], None] | _Arrived | None"


class _Arrived(NamedTuple):
    """A message that waits to be read."""

    link: Link
    topic: str
    payload: bytes


class Driver:
    """Listens to a node's links, and performs everything on the thread that calls `run`."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._queue: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._kept: deque[_Waiting] = deque()
        """Items taken from the queue while the disk was full, to be processed once there is room."""
        node.on_disk_full = self._refuse_requests
        self._up: set[Link] = set()
        self._counting = threading.Lock()
        self._waiting = 0
        """Bytes of messages that arrived and were not read yet."""
        self._overrun = False
        self._why_down = "not connected yet"
        self._notifier = Notifier()

    @property
    def connected(self) -> dict[Role, bool]:
        """Whether the link to each role is up; only for the node's own thread."""
        return {role: link in self._up for role, link in self.node.links.items()}

    def link_up(self, link: Link) -> None:
        """Note that the link is connected."""
        self._queue.put(lambda now: self._now_up(link, now))

    def link_down(self, link: Link, reason: str) -> None:
        """Note and report that the link was lost; requests are resent anyway."""
        self._queue.put(lambda _: self._now_down(link, reason))

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """Queue a message that the link received."""
        if self._waiting + len(payload) > MAX_UNREAD_BYTES:  # a sender that needs a reply asks again
            if not self._overrun:
                log.warning("messages arrive too fast: dropping those beyond %d MB", MAX_UNREAD_BYTES >> 20)
            self._overrun = True
            return
        with self._counting:
            self._waiting += len(payload)
        self._queue.put(_Arrived(link, topic, payload))

    def _read(self, message: _Arrived) -> None:
        with self._counting:
            self._waiting -= len(message.payload)

    def _refuse_requests(self, reason: str) -> None:
        """Refuse the requests of operators while the disk is full, and keep everything else in order."""
        now = time.monotonic()
        with suppress(queue.Empty):
            while True:
                waiting = self._queue.get_nowait()
                if isinstance(waiting, _Arrived) and self.node.refuse(*waiting, reason, now):
                    self._read(waiting)
                else:
                    self._kept.append(waiting)

    def report(self, event: Event) -> None:
        """Queue a worker's event."""
        self._queue.put(lambda now: self.node.inject(event, now))

    def call(self, action: Callable[[float], None]) -> None:
        """Call `action` on the node's own thread."""
        self._queue.put(action)

    def stop(self) -> None:
        """Leave `run` once the queue is processed. May be called from any thread or signal handler."""
        self._queue.put(None)

    def run(self, notifier: Notifier | None = None) -> None:
        """Run until stopped, then close the node cleanly; `notifier` reports to a service manager.

        A node is ready as soon as it runs: startup succeeds even if the broker is down.
        """
        self._notifier = notifier or self._notifier
        self.node.start(time.monotonic(), self.report)
        for link in dict.fromkeys(self.node.links.values()):
            link.open(self, self.node.reception.filters(link), self.node.will())
        self._notifier.ready()
        self._report_status()
        try:
            while self._step():
                pass
        finally:
            self._notifier.stopping()
            self.node.close()

    def _step(self) -> bool:
        wake = self.node.wake_at()
        # Only this loop sends the watchdog pulse, so that a hanging loop is detected.
        self._notifier.alive(time.monotonic())
        longest = earliest(LONGEST_WAIT, self._notifier.interval) or LONGEST_WAIT
        wait = longest if wake is None else min(max(wake - time.monotonic(), 0), longest)
        try:
            action = self._kept.popleft() if self._kept else self._queue.get(timeout=wait)
        except queue.Empty:
            self.node.tick(time.monotonic())
            return True
        if action is None:
            return False
        now = time.monotonic()
        if isinstance(action, _Arrived):
            self._read(action)
            self.node.arrived(*action, now)
        else:
            action(now)
        if wake is not None and wake <= now:
            self.node.tick(now)
        return True

    def _now_up(self, link: Link, now: float) -> None:
        self._up.add(link)
        self._report_status()
        self.node.link_up(link, now)

    def _now_down(self, link: Link, reason: str) -> None:
        self._up.discard(link)
        self._why_down = reason
        self._report_status()

    def _report_status(self) -> None:
        lacking = set(self.node.links.values()) - self._up
        self._notifier.status(self._why_down if lacking else "connected")


def run_until_signal(driver: Driver, notifier: Notifier) -> None:
    """Run until Ctrl-C or SIGTERM, then stop cleanly; a second Ctrl-C ends it at once."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        driver.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        driver.run(notifier)
    finally:
        notifier.close()
