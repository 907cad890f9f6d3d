"""Serves a running node's metrics if a port is set: the common ones, and those of its role."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sojourn import __version__
from sojourn.errors import require_extra
from sojourn.links.settings import BrokerSettings
from sojourn.metrics.catalogue import BUILD, DROPPED, LINK_UP, NETWORK_BYTES, OUTBOX, MetricSource, Reading
from sojourn.node.driver import Driver

ANSWER_TIMEOUT = 1.0
"""Seconds that a scrape waits for the node; if it is busy for longer, or its disk is full, older values are served."""
MAX_AGE = 0.25
"""Seconds for which a snapshot is reused, so that frequent scrapes do not load the node."""


class Snapshots:
    """Takes snapshots of a node's metrics, one at a time."""

    def __init__(self, driver: Driver, sources: Sequence[MetricSource]) -> None:
        self._driver = driver
        self._sources = sources
        self._lock = threading.Lock()
        self._pending: threading.Event | None = None
        """Set once the node has replied; None if no request is pending."""
        self._latest = Reading()
        self._taken = -MAX_AGE
        self._failed: set[MetricSource] = set()
        """Sources whose failure has been logged."""

    def take(self) -> tuple[Reading, bool]:
        """Return the newest values, and whether the node replied; otherwise they are older ones."""
        with self._lock:
            if time.monotonic() < self._taken + MAX_AGE:
                return self._latest, True
            if self._pending is None:
                self._pending = asked = threading.Event()
                self._driver.call(lambda _now: self._answer(asked))
            answered = self._pending.wait(ANSWER_TIMEOUT)
            if answered:
                self._pending = None
            return self._latest, answered

    def _answer(self, asked: threading.Event) -> None:
        reading, now = Reading(), time.time()
        for source in self._sources:
            try:
                source.read(reading, now)
            except Exception:  # a faulty source must not stop the node; log its traceback once
                if source not in self._failed:
                    log.exception("cannot read metrics: %s", type(source).__name__)
                self._failed.add(source)
        self._latest, self._taken = reading, time.monotonic()
        asked.set()


_ROLES = {"device": "agent", "edge": "edge", "cloud": "coordinator"}


class NodeMetrics:
    """Metrics of a driver and its node; `unanswered` returns the number of pending requests."""

    def __init__(self, driver: Driver, unanswered: Callable[[], int]) -> None:
        self._driver = driver
        self._unanswered = unanswered

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # no value depends on the time
        """Put the current values."""
        node = self._driver.node
        into.put(BUILD, 1, __version__, _ROLES[node.address.role], node.address.name)
        for peer, up in self._driver.connected.items():
            into.put(LINK_UP, float(up), peer)
        into.put(NETWORK_BYTES, node.received, "received")
        into.put(NETWORK_BYTES, node.sent, "sent")
        into.put(DROPPED, sum(node.reception.dropped.values()))
        into.put(OUTBOX, self._unanswered())


log = logging.getLogger("sojourn")


@contextmanager
def metrics_served(
    port: int, driver: Driver, sources: Sequence[MetricSource], store: Path, brokers: Mapping[str, BrokerSettings]
) -> Iterator[None]:
    """Serve the node's metrics at this port within the context."""
    require_extra("metrics", f"metrics_port = {port}")
    from sojourn.metrics.page import (  # noqa: PLC0415  # imports the library only if needed
        MachineMetrics,
        MetricsPage,
        NodeCollector,
    )

    collector = NodeCollector(Snapshots(driver, sources), MachineMetrics(store, brokers))
    with closing(MetricsPage(port, collector)):
        log.info("metrics for Prometheus: http://127.0.0.1:%d/metrics", port)
        yield
