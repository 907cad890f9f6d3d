"""The durable state of an edge server, and the records that change it.

A tour is led as waves of visits. Without edge merges each wave is one hop. With edge merges each wave is all devices
at once, and hop numbers continue from wave to wave.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from sojourn.protocol.limits import drop_oldest, sum_within
from sojourn.protocol.messages import Tour, Toured
from sojourn.protocol.wire import Ref, TourId, VisitId, VisitReport

Key = str
"""A tour without its attempt: job, round, tour number."""
TOURS_REMEMBERED = 256
"""At most this many ended tours are remembered by their attempt, so that a repeated old order does not start one."""
VISITS_REMEMBERED = 16 * TOURS_REMEMBERED
"""At most this many kept visits of ended tours are remembered, for devices that missed the confirmation."""
ATTEMPTS_SKIPPED = 1_000_000
"""More than the number of visits of any tour."""


class TourTaken(msgspec.Struct, frozen=True, tag="tour-taken/1"):
    """The edge server accepted a tour."""

    order: Tour = msgspec.field(name="tour")


class VisitIssued(msgspec.Struct, frozen=True, tag="visit-issued/1"):
    """The model was assigned to a device, under a new fencing number, for the visit at place `at` of the wave."""

    key: Key
    device: str
    at: int = 0


class VisitKept(msgspec.Struct, frozen=True, tag="visit-kept/1"):
    """A result passed the gate: it is the tour's checkpoint now, or waits for its wave to be merged.

    `wire_vectors` is what the next device receives.
    """

    key: Key
    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]
    report: VisitReport


class VisitMissed(msgspec.Struct, frozen=True, tag="visit-missed/1"):
    """A visit failed; `then` is what is tried next: the same device, a spare, or the next hop."""

    key: Key
    report: VisitReport
    then: str


class WaveMerged(msgspec.Struct, frozen=True, tag="wave-merged/1"):
    """All visits of a wave are over: the mean of its models is the checkpoint; without results it is unchanged."""

    key: Key
    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]


class TourEnded(msgspec.Struct, frozen=True, tag="tour-ended/1"):
    """A tour is over; its result waits for the coordinator's acceptance."""

    key: Key
    toured: Toured


class TourDropped(msgspec.Struct, frozen=True, tag="tour-dropped/1"):
    """A tour was accepted by the coordinator, cancelled, or replaced by a later attempt."""

    key: Key


OfTour = VisitIssued | VisitKept | VisitMissed | WaveMerged | TourEnded
Record = TourTaken | OfTour | TourDropped


class OpenVisit(msgspec.Struct):
    """A hop of the current wave that has begun and not ended.

    device: the device that the model is assigned to; None between two tries. attempt: its fencing number. tries: the
    number of failed tries.
    """

    device: str | None = None
    attempt: int = 0
    tries: int = 0


class WaveResult(msgspec.Struct, frozen=True):
    """A result that waits for the others of its wave."""

    model: Ref
    samples: int


class TourState(msgspec.Struct):
    """A tour that is running, or whose result waits."""

    order: Tour = msgspec.field(name="tour")
    route: list[str]
    spares: list[str]
    vectors: dict[str, Ref]
    """The checkpoint: the exact model, and the sums of the other vectors that visits returned."""
    wire_vectors: dict[str, Ref]
    """The vectors that the next device receives."""
    hop: int = 0
    """The first hop of the current wave."""
    open_visits: dict[int, OpenVisit] = msgspec.field(default_factory=dict, name="stops")
    """The hops of the current wave that have begun and not ended."""
    results: dict[int, WaveResult | None] = {}
    """The ended hops of a wave, until it is merged; None for a failed hop."""
    attempts: int = 0
    lost: int = 0
    reports: list[VisitReport] = []
    toured: Toured | None = None

    @property
    def visits(self) -> int:
        """Return the number of visits of the tour."""
        return len(self.route) * max(1, self.order.merges)

    @property
    def wave(self) -> range:
        """Return the hops that may be visited now."""
        return range(self.hop, self.hop + (len(self.route) if self.order.merges else 1))

    @property
    def finished(self) -> bool:
        """Return whether no hop is left."""
        return self.hop >= self.visits

    @property
    def complete(self) -> bool:
        """Return whether every visit of the current wave is over, so that it can be merged."""
        return bool(self.order.merges) and len(self.results) == len(self.route)

    @property
    def ended_visits(self) -> int:
        """Return the number of ended visits."""
        return self.hop + len(self.results)

    @property
    def samples(self) -> int:
        """Return the number of samples of the tour's model: the weight of the tour in the cloud.

        Without merges: all samples that the model was trained on. With edge merges: those of the devices in the last
        merge that had a result. HierFAVG weighs an edge by the size of its data, however often it merged.
        """
        done = [report for report in self.reports if report.status == "done"]
        if not self.order.merges:
            return sum_within(report.samples for report in done)
        last = max((report.hop // len(self.route) for report in done), default=0)
        return sum_within({it.device: it.samples for it in done if it.hop // len(self.route) == last}.values())

    def is_due(self, hop: int) -> bool:
        """Return whether this visit belongs to the current wave and is not over."""
        return hop in self.wave and hop not in self.results and not self.finished

    def place(self, hop: int) -> int:
        """Return the place of a hop on the route."""
        return hop % len(self.route)

    def repeat(self, hop: int) -> int:
        """Return how often the hop's device was due on this tour before."""
        if self.order.merges:
            return hop // len(self.route)
        return self.route[:hop].count(self.route[hop])

    def visit(self, hop: int) -> VisitId:
        """Return the id of an issued visit, with its fencing number."""
        it = self.order.id
        return VisitId(it.job, it.round, it.number, hop, (it.attempt, self.open_visits[hop].attempt))

    def visiting(self) -> dict[int, str]:
        """Return the devices that the model is assigned to, by hop."""
        return {hop: visit.device for hop, visit in self.open_visits.items() if visit.device is not None}

    def live(self) -> set[bytes]:
        """Return the digests of the blobs that this tour refers to."""
        kept = [self.order.kit, *self.order.vectors.values(), *self.vectors.values(), *self.wire_vectors.values()]
        kept += [result.model for result in self.results.values() if result]
        if self.toured:
            kept += [*self.toured.vectors.values(), self.toured.reports]
        return {ref.digest for ref in kept}

    def validation_error(self, record: OfTour) -> str | None:
        """Return why a record does not follow: an earlier record of the tour is missing."""
        match record:
            case _ if self.toured:
                fits = False
            case VisitIssued():
                hop = self.hop + record.at
                fits = self._expects(hop, record.device) and hop not in self.visiting()
            case VisitKept() | VisitMissed():
                fits = self._expects(record.report.hop, record.report.device)
            case WaveMerged():
                fits = self.complete
            case TourEnded():
                fits = self.finished
        return None if fits else f"an earlier record of the tour {self.order.id} is missing"

    def _expects(self, hop: int, device: str) -> bool:
        return self.is_due(hop) and self.route[self.place(hop)] == device

    def restarted(self) -> TourState:
        """Return the same tour at its beginning, with visit numbers above all previous ones."""
        return TourState.of(self.order, self.attempts)

    @classmethod
    def of(cls, it: Tour, attempts: int) -> TourState:
        """Return a tour at its beginning, of which `attempts` visits were numbered before."""
        hops, spares = list(it.hops), list(it.spares)
        return cls(it, hops, spares, {"model": it.vectors["model"]}, dict(it.vectors), attempts=attempts)

    def lacks(self, missing: AbstractSet[bytes]) -> bool:
        """Return whether blobs made by its visits are missing; those from the coordinator can be fetched again."""
        given = {ref.digest for ref in [self.order.kit, *self.order.vectors.values()]}
        return bool((self.live() & missing) - given)

    def apply(self, record: OfTour) -> None:
        """Apply one record."""
        match record:
            case VisitIssued():
                self.attempts += 1
                visit = self.open_visits.setdefault(self.hop + record.at, OpenVisit())
                visit.device, visit.attempt = record.device, self.attempts
            case VisitKept():
                self.reports.append(record.report)
                if self.order.merges:
                    self._end_hop(record.report.hop, WaveResult(record.vectors["model"], record.report.samples))
                else:
                    self._advance_checkpoint(record)
                    self._end_hop(record.report.hop)
            case VisitMissed():
                self.reports.append(record.report)
                self._missed(record.report.hop, record.then)
            case WaveMerged():
                self._advance_checkpoint(record)
                # A device that failed in one wave is asked again in the next one.
                self.route, self.spares = list(self.order.hops), list(self.order.spares)
                self.hop, self.results = self.hop + len(self.route), {}
            case TourEnded():
                self.toured = record.toured

    def _advance_checkpoint(self, record: VisitKept | WaveMerged) -> None:
        self.vectors |= record.vectors
        self.wire_vectors |= record.wire_vectors

    def _missed(self, hop: int, then: str) -> None:
        self.lost += 1
        if then == "skip":
            self._end_hop(hop)
            return
        visit = self.open_visits.setdefault(hop, OpenVisit())
        visit.device, visit.tries = None, visit.tries + 1
        if then == "swap":
            self.route[self.place(hop)] = self.spares.pop(0)

    def _end_hop(self, hop: int, result: WaveResult | None = None) -> None:
        self.open_visits.pop(hop, None)
        if self.order.merges:
            self.results[hop] = result
        else:
            self.hop += 1


class EdgeState(msgspec.Struct):
    """The durable state of an edge server."""

    tours: dict[Key, TourState] = {}
    fences: dict[Key, int] = {}
    accepted: dict[str, bool] = {}
    """The kept visits of past tours, for devices that missed the confirmation."""
    attempts_before: int = 0
    """The visits of new tours are numbered after this, in case records, and the numbers in them, were lost."""

    def apply(self, record: Record) -> None:
        """Apply one record."""
        match record:
            case TourTaken():
                self.tours[key_of(record.order.id)] = TourState.of(record.order, self.attempts_before)
            case TourDropped():
                self._drop(record.key)
            case _:
                self.tours[record.key].apply(record)

    def validation_error(self, record: Record) -> str | None:
        """Return why a record does not follow: an earlier one is missing."""
        if isinstance(record, TourTaken):
            return None
        tour = self.tours.get(record.key)
        if tour is None:
            return f"no tour has the key {record.key} (keys count from 0)"
        return None if isinstance(record, TourDropped) else tour.validation_error(record)

    def reserve_newer_attempts(self) -> None:
        """Number visits beyond all that devices may have seen, after records were lost."""
        self.attempts_before += ATTEMPTS_SKIPPED
        for tour in self.tours.values():
            tour.attempts += ATTEMPTS_SKIPPED

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
        """Restart the tours whose checkpoint or result is missing; return a log line for each."""
        lacking = [key for key, tour in self.tours.items() if tour.lacks(missing)]
        for key in lacking:
            self.tours[key] = self.tours[key].restarted()
        return [f"models of the tour {self.tours[key].order.id} are missing; it starts again" for key in lacking]

    def _drop(self, key: Key) -> None:
        tour = self.tours.pop(key)
        self.fences.pop(key, None)
        self.fences[key] = tour.order.id.attempt
        for report in tour.reports:
            if report.status == "done":
                self.accepted[f"{key}/{report.hop}/{report.device}"] = True
        drop_oldest(self.fences, TOURS_REMEMBERED)
        drop_oldest(self.accepted, VISITS_REMEMBERED)

    def was_accepted(self, visit: VisitId, device: str) -> bool:
        """Return whether a result of this device was kept for this hop."""
        key = key_of(visit)
        if tour := self.tours.get(key):
            return any(r.hop == visit.hop and r.device == device and r.status == "done" for r in tour.reports)
        return f"{key}/{visit.hop}/{device}" in self.accepted


def key_of(it: TourId | VisitId) -> Key:
    """Return the key of a tour, or of a visit's tour."""
    number = it.number if isinstance(it, TourId) else it.tour
    return f"{it.job}/{it.round}/{number}"
