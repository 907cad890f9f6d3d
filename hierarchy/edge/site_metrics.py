"""The Prometheus metrics of an edge server, served if a port is set."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from hierarchy.edge.records import VisitKept, VisitMissed
from hierarchy.settings import EdgeSettings
from sojourn.metrics.catalogue import EDGE_DEVICES, EDGE_TOURS, EDGE_VISIT_SECONDS, EDGE_VISITS, Reading, VisitCounts
from sojourn.node.driver import Driver
from sojourn.protocol.visit_outcomes import OUTCOMES, reason_word
from sojourn.settings import store_folder

if TYPE_CHECKING:
    from hierarchy.edge.server import EdgeServer


class SiteMetrics:
    """The metrics of an edge server."""

    def __init__(self, server: EdgeServer) -> None:
        self._server = server
        self._visits = VisitCounts()

    def recorded(self, record: object) -> None:
        """Count visits as they end."""
        if isinstance(record, VisitKept):
            self._visits.add("done", "", record.report.seconds)
        elif isinstance(record, VisitMissed):
            report = record.report
            self._visits.add(report.status, reason_word(report.status, report.reason))

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # nothing here has a date
        """Add the current values."""
        site, members = self._server.site, self._server.roster.members
        visiting = len(site.at.keys() & members.keys())
        into.put(EDGE_DEVICES, len(members) - visiting, "idle")
        into.put(EDGE_DEVICES, visiting, "visiting")
        into.put(EDGE_TOURS, len(site.state.tours))
        self._visits.put(into, EDGE_VISITS, EDGE_VISIT_SECONDS, OUTCOMES)


def metrics_of(settings: EdgeSettings, driver: Driver) -> AbstractContextManager[None]:
    """Serve this edge server's metrics to Prometheus while in this context, if a port is set."""
    if not settings.metrics_port:
        return nullcontext()
    from sojourn.metrics.serving import NodeMetrics, metrics_served  # noqa: PLC0415

    server: EdgeServer = driver.node.machine  # type: ignore[assignment]  # it was assembled a moment ago
    metrics = SiteMetrics(server)
    driver.node.on_record(metrics.recorded)
    brokers = {"device": settings.broker, **({"cloud": settings.cloud_broker} if settings.cloud_broker else {})}
    store = store_folder(settings.store, settings.fleet, settings.name)
    sources = NodeMetrics(driver, lambda: len(server.site.outbox)), metrics
    return metrics_served(settings.metrics_port, driver, sources, store, brokers)
