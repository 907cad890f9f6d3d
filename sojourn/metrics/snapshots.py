"""Takes a node's figures where nothing changes meanwhile: on the node's own thread, between two of its actions."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from sojourn.metrics.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.metrics.reading import FigureSource
    from sojourn.node.driver import Driver

PATIENCE = 1.0
"""Seconds that a scrape waits for the node: one that is busy for longer, or has no room on its disk, is shown as it
was."""
FRESH = 0.25
"""Seconds for which figures are good: however often somebody scrapes, the node is not asked more often."""
log = logging.getLogger(__name__)


class Snapshots:
    """Asks a node for its figures, one question at a time."""

    def __init__(self, driver: Driver, sources: Sequence[FigureSource]) -> None:
        self._driver = driver
        self._sources = sources
        self._lock = threading.Lock()
        self._asked: threading.Event | None = None
        """Set once the node has answered; None while nothing is asked."""
        self._latest = Reading()
        self._taken = -FRESH
        self._failed: set[FigureSource] = set()
        """Those that could not be read once, and that the log has told of."""

    def take(self) -> tuple[Reading, bool]:
        """The newest figures, and whether the node answered; else they are those of before."""
        with self._lock:
            if time.monotonic() < self._taken + FRESH:
                return self._latest, True
            if self._asked is None:
                self._asked = asked = threading.Event()
                self._driver.call(lambda _now: self._answer(asked))
            answered = self._asked.wait(PATIENCE)
            if answered:
                self._asked = None
            return self._latest, answered

    def _answer(self, asked: threading.Event) -> None:
        reading, now = Reading(), time.time()
        for source in self._sources:
            try:
                source.read(reading, now)
            except Exception:  # a mistake in a figure must not end the node; the traceback is in the log, once
                if source not in self._failed:
                    log.exception("figures could not be read: %s", type(source).__name__)
                self._failed.add(source)
        self._latest, self._taken = reading, time.monotonic()
        asked.set()
