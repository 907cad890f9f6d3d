"""A coordinator on a bench with a fixed clock, and its answers to an operator about the fleet."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.fleet_records import VisitOutcome
from coordinator.machine.coordinator import Coordinator
from coordinator.records import DevicesEstimated, RoundClosed
from coordinator.rounds.results import CloseRound
from sojourn.protocol.operator_messages import InspectFleet
from sojourn.protocol.wire import RoundReport
from tests.coordinator.machine.cloud_bench import MODEL, OPERATOR, Bench
from tests.sojourn.store.replays import replayed, sends

WALL = 1_790_000_000.0


class FleetBench(Bench):
    """Closes rounds with visits, and sends requests about the fleet."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = Coordinator("c", wall=WALL)

    def replayed(self, cut=0) -> Coordinator:
        return replayed(Coordinator("c", wall=WALL), self.records, cut)

    def close(self, now=0.0, accuracy=0.5, reasons: dict[str, str] | None = None) -> list[Any]:
        def closed(work: CloseRound):
            visited = tuple(
                VisitOutcome(tour.number, 0, tour.site, tour.hops[0], "declined", reason)
                if (reason := (reasons or {}).get(tour.hops[0]))
                else VisitOutcome(tour.number, 0, tour.site, tour.hops[0], "done", "", 60, 1.5, 0.75)
                for tour in work.state.tours
            )
            if work.state.phase == "estimate":
                known = {it.device: it.samples for it in visited if it.status == "done"}
                failures = tuple(f"{it.device}: not estimated: {it.reason}" for it in visited if it.reason)
                silent = tuple(it.device for it in visited if it.reason)
                signatures: dict[str, tuple[float, ...]] = dict.fromkeys(known, (0.5,) * 10)
                return DevicesEstimated(
                    work.state.name, signatures, silent, failures, 0, known, failed=len(failures), visited=visited
                )
            report = RoundReport(work.state.round, accuracy, 1.0, 2, 2, 0, 0, 1.0, {}, work.state.unestimated)
            return RoundClosed(work.state.name, {"model": MODEL}, {"model": MODEL}, (), report, visited=visited)

        return self.did(CloseRound, closed, now)

    def ask(self, about: Any = "devices", now=0.0, **how) -> Any:
        (answer,) = sends(self.receive(OPERATOR, InspectFleet("t", about, **how), now))
        return answer

    def all(self, about: Any, now=0.0, **how) -> list[Any]:
        """Return the entries of all pages."""
        found, page = [], self.ask(about, now, **how)
        found += getattr(page, about)
        while page.next:
            page = self.ask(about, now, after=page.next, **how)
            found += getattr(page, about)
            assert len(msgspec.msgpack.encode(page)) < 60_000
        return found
