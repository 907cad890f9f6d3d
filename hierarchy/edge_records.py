"""What an edge server must not forget: its durable state, and the records that change it."""

from __future__ import annotations

from typing import Any

import msgspec

from sojourn.messages import Tour, Toured
from sojourn.wire import Ref, TourId, VisitId, VisitReport

Key = str
"""A tour without its attempt: job, round, tour."""
KEPT = 256


class TourTaken(msgspec.Struct, frozen=True, tag="tour-taken/1"):
    """A tour was accepted for work."""

    tour: Tour


class VisitIssued(msgspec.Struct, frozen=True, tag="visit-issued/1"):
    """The model was promised to a device, under a new fencing number."""

    key: Key
    device: str


class VisitKept(msgspec.Struct, frozen=True, tag="visit-kept/1"):
    """A result passed the gate: it is the tour's checkpoint now. `handout` is how it goes to the next device."""

    key: Key
    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    report: VisitReport


class VisitMissed(msgspec.Struct, frozen=True, tag="visit-missed/1"):
    """A visit came to nothing; what is tried next: the same device, a spare, or the next hop."""

    key: Key
    report: VisitReport
    then: str


class TourEnded(msgspec.Struct, frozen=True, tag="tour-ended/1"):
    """A tour is over; its result waits to be accepted."""

    key: Key
    toured: Toured


class TourDropped(msgspec.Struct, frozen=True, tag="tour-dropped/1"):
    """A tour was accepted by the coordinator, cancelled, or replaced by a later attempt."""

    key: Key


Record = TourTaken | VisitIssued | VisitKept | VisitMissed | TourEnded | TourDropped


class TourState(msgspec.Struct):
    """A tour that is under way, or whose result waits."""

    tour: Tour
    route: list[str]
    spares: list[str]
    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    hop: int = 0
    tries: int = 0
    attempts: int = 0
    visiting: str | None = None
    reports: list[VisitReport] = []
    toured: Toured | None = None

    @property
    def visit(self) -> VisitId:
        """The visit that is under way, with its fencing number."""
        it = self.tour.tour
        return VisitId(it.job, it.round, it.tour, self.hop, (it.attempt, self.attempts))

    @property
    def finished(self) -> bool:
        """Whether no hop is left."""
        return self.hop >= len(self.route)

    @property
    def samples(self) -> int:
        """The samples that the model has seen on this tour."""
        return sum(report.samples for report in self.reports if report.status == "done")

    def live(self) -> set[bytes]:
        """The blobs that this tour refers to."""
        kept = [self.tour.kit, *self.tour.vectors.values(), *self.vectors.values(), *self.handout.values()]
        if self.toured:
            kept += [*self.toured.vectors.values(), self.toured.reports]
        return {ref.digest for ref in kept}


class EdgeState(msgspec.Struct):
    """The durable state of an edge server."""

    tours: dict[Key, TourState] = {}
    fences: dict[Key, int] = {}
    accepted: dict[str, bool] = {}
    """The visits of past tours that were kept, for devices that did not hear it."""

    def apply(self, record: Record) -> None:  # noqa: C901  # one short case for each record
        """Change by one record."""
        if isinstance(record, TourTaken):
            it = record.tour
            self.tours[key_of(it.tour)] = TourState(
                it, list(it.hops), list(it.spares), dict(it.vectors), dict(it.vectors)
            )
            return
        tour = self.tours[record.key]
        match record:
            case VisitIssued():
                tour.attempts += 1
                tour.visiting = record.device
            case VisitKept():
                tour.vectors |= record.vectors
                tour.handout |= record.handout
                tour.reports.append(record.report)
                _go_on(tour)
            case VisitMissed():
                tour.reports.append(record.report)
                tour.visiting = None
                tour.tries += 1
                if record.then == "swap":
                    tour.route[tour.hop] = tour.spares.pop(0)
                elif record.then == "skip":
                    _go_on(tour)
            case TourEnded():
                tour.toured = record.toured
            case TourDropped():
                del self.tours[record.key]
                self.fences.pop(record.key, None)
                self.fences[record.key] = tour.tour.tour.attempt
                for report in tour.reports:
                    if report.status == "done":
                        self.accepted[f"{record.key}/{report.hop}/{report.device}"] = True
                _bound(self.fences, KEPT)
                _bound(self.accepted, 16 * KEPT)

    def was_accepted(self, visit: VisitId, device: str) -> bool:
        """Whether a result of this device was kept for this hop."""
        key = key_of(visit)
        if tour := self.tours.get(key):
            return any(r.hop == visit.hop and r.device == device and r.status == "done" for r in tour.reports)
        return f"{key}/{visit.hop}/{device}" in self.accepted


def _go_on(tour: TourState) -> None:
    tour.hop, tour.tries, tour.visiting = tour.hop + 1, 0, None


def _bound(kept: dict[str, Any], limit: int) -> None:
    """Forget the oldest beyond the limit."""
    while len(kept) > limit:
        del kept[next(iter(kept))]


def key_of(tour: TourId | VisitId) -> Key:
    """The tour without its attempt."""
    return f"{tour.job}/{tour.round}/{tour.tour}"
