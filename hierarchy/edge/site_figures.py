"""What an edge server tells Prometheus of its site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hierarchy.edge.records import VisitKept, VisitMissed
from sojourn.metrics.catalogue import EDGE_DEVICES, EDGE_TOURS, EDGE_VISIT_SECONDS, EDGE_VISITS
from sojourn.metrics.reading import VisitCounts
from sojourn.protocol.visit_words import OUTCOMES, reason_word

if TYPE_CHECKING:
    from hierarchy.edge.server import EdgeServer
    from sojourn.metrics.reading import Reading


class SiteFigures:
    """The figures of an edge server."""

    def __init__(self, server: EdgeServer) -> None:
        self._server = server
        self._visits = VisitCounts()

    def recorded(self, record: object) -> None:
        """A record was written: count visits as they end."""
        if isinstance(record, VisitKept):
            self._visits.add("done", "", record.report.seconds)
        elif isinstance(record, VisitMissed):
            report = record.report
            self._visits.add(report.status, reason_word(report.status, report.reason))

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # nothing here has a date
        """Put what is known now."""
        site, here = self._server.site, self._server.roster.members
        visiting = len(site.at.keys() & here.keys())
        into.put(EDGE_DEVICES, len(here) - visiting, "idle")
        into.put(EDGE_DEVICES, visiting, "visiting")
        into.put(EDGE_TOURS, len(site.state.tours))
        self._visits.put(into, EDGE_VISITS, EDGE_VISIT_SECONDS, OUTCOMES)
