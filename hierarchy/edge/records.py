"""What an edge server must not forget: its durable state, and the records that change it.

A tour is led as waves of visits. One visit after another: each wave is one hop. With edge merges: each wave is all
devices at once, and hop numbers run on from wave to wave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sojourn.parts import TourBounds
from sojourn.protocol.limits import sum_within
from sojourn.protocol.messages import Tour, Toured
from sojourn.protocol.wire import Ref, TourId, VisitId, VisitReport

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

Key = str
"""A tour without its attempt: job, round, tour."""
TOURS_REMEMBERED = 256
"""At most this many ended tours are remembered by their attempt, so that an old order does not begin one anew."""
VISITS_REMEMBERED = 16 * TOURS_REMEMBERED
"""At most this many kept visits of ended tours are remembered, for devices that did not hear it."""
ATTEMPTS_SKIPPED = 1_000_000
"""More visits than a tour numbers."""


class TourTaken(msgspec.Struct, frozen=True, tag="tour-taken/1"):
    """A tour was accepted for work."""

    order: Tour = msgspec.field(name="tour")


class VisitIssued(msgspec.Struct, frozen=True, tag="visit-issued/1"):
    """The model was promised to a device, under a new fencing number, for the visit `at` this place of the wave."""

    key: Key
    device: str
    at: int = 0


class VisitKept(msgspec.Struct, frozen=True, tag="visit-kept/1"):
    """A result passed the gate: it is the tour's checkpoint now, or waits for its wave to be merged.

    `handout` is how it goes to the next device.
    """

    key: Key
    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    report: VisitReport


class VisitMissed(msgspec.Struct, frozen=True, tag="visit-missed/1"):
    """A visit came to nothing; what is tried next: the same device, a spare, or the next hop."""

    key: Key
    report: VisitReport
    then: str


class WaveMerged(msgspec.Struct, frozen=True, tag="wave-merged/1"):
    """All visits of a wave are over: the mean of its models is the checkpoint, or it stays when none came back."""

    key: Key
    vectors: dict[str, Ref]
    handout: dict[str, Ref]


class TourEnded(msgspec.Struct, frozen=True, tag="tour-ended/1"):
    """A tour is over; its result waits to be accepted."""

    key: Key
    toured: Toured


class TourDropped(msgspec.Struct, frozen=True, tag="tour-dropped/1"):
    """A tour was accepted by the coordinator, cancelled, or replaced by a later attempt."""

    key: Key


OfTour = VisitIssued | VisitKept | VisitMissed | WaveMerged | TourEnded
Record = TourTaken | OfTour | TourDropped


class OpenVisit(msgspec.Struct):
    """A hop of the present wave that was begun and is not over.

    device: whom the model was promised to; None between two tries. attempt: under which number. tries: how many came to
    nothing.
    """

    device: str | None = None
    attempt: int = 0
    tries: int = 0


class WaveResult(msgspec.Struct, frozen=True):
    """A result that waits for the others of its wave."""

    model: Ref
    samples: int


class TourState(msgspec.Struct):
    """A tour that is under way, or whose result waits."""

    order: Tour = msgspec.field(name="tour")
    route: list[str]
    spares: list[str]
    vectors: dict[str, Ref]
    """The checkpoint: the exact model, and the sums of what the visits returned besides it."""
    handout: dict[str, Ref]
    """What the next device is handed."""
    hop: int = 0
    """The first hop of the present wave."""
    open_visits: dict[int, OpenVisit] = msgspec.field(default_factory=dict, name="stops")
    """The hops of the present wave that were begun and are not over."""
    results: dict[int, WaveResult | None] = {}
    """The hops of a wave that are over, until it is merged; None for one that came to nothing."""
    attempts: int = 0
    lost: int = 0
    reports: list[VisitReport] = []
    toured: Toured | None = None

    @property
    def bounds(self) -> TourBounds:
        """What bounds the tour besides its policy and gate: nothing, if an earlier version ordered it."""
        return TourBounds() if isinstance(self.order.bounds, msgspec.UnsetType) else self.order.bounds

    @property
    def visits(self) -> int:
        """How many visits the tour has."""
        return len(self.route) * max(1, self.order.merges)

    @property
    def wave(self) -> range:
        """The hops that may be visited now."""
        return range(self.hop, self.hop + (len(self.route) if self.order.merges else 1))

    @property
    def finished(self) -> bool:
        """Whether no hop is left."""
        return self.hop >= self.visits

    @property
    def complete(self) -> bool:
        """Whether every visit of the present wave is over, so that it can be merged."""
        return bool(self.order.merges) and len(self.results) == len(self.route)

    @property
    def over(self) -> int:
        """How many visits are over."""
        return self.hop + len(self.results)

    @property
    def samples(self) -> int:
        """The samples that the tour's model stands for: the weight of the tour in the cloud.

        One visit after another: all that the model has seen. With edge merges: those of the devices that the last
        merge with any result is of. HierFAVG weighs an edge by the size of its data, however often it merged.
        """
        done = [report for report in self.reports if report.status == "done"]
        if not self.order.merges:
            return sum_within(report.samples for report in done)
        last = max((report.hop // len(self.route) for report in done), default=0)
        return sum_within({it.device: it.samples for it in done if it.hop // len(self.route) == last}.values())

    def is_due(self, hop: int) -> bool:
        """Whether this visit is of the present wave and not over."""
        return hop in self.wave and hop not in self.results and not self.finished

    def place(self, hop: int) -> int:
        """Where a hop is on the route."""
        return hop % len(self.route)

    def repeat(self, hop: int) -> int:
        """How often the hop's device was due on this tour before."""
        if self.order.merges:
            return hop // len(self.route)
        return self.route[:hop].count(self.route[hop])

    def visit(self, hop: int) -> VisitId:
        """A visit that was issued, with its fencing number."""
        it = self.order.id
        return VisitId(it.job, it.round, it.number, hop, (it.attempt, self.open_visits[hop].attempt))

    def visiting(self) -> dict[int, str]:
        """The devices that the model was promised to, by hop."""
        return {hop: visit.device for hop, visit in self.open_visits.items() if visit.device is not None}

    def live(self) -> set[bytes]:
        """The blobs that this tour refers to."""
        kept = [self.order.kit, *self.order.vectors.values(), *self.vectors.values(), *self.handout.values()]
        kept += [result.model for result in self.results.values() if result]
        if self.toured:
            kept += [*self.toured.vectors.values(), self.toured.reports]
        return {ref.digest for ref in kept}

    def objection(self, record: OfTour) -> str | None:
        """Why a record does not follow, where an earlier one of the tour is missing."""
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

    def anew(self) -> TourState:
        """The same tour from its beginning, with visits whose numbers are newer than those before."""
        return TourState.of(self.order, self.attempts)

    @classmethod
    def of(cls, it: Tour, attempts: int) -> TourState:
        """A tour at its beginning, of which so many visits were numbered before."""
        hops, spares = list(it.hops), list(it.spares)
        return cls(it, hops, spares, {"model": it.vectors["model"]}, dict(it.vectors), attempts=attempts)

    def lacks(self, missing: AbstractSet[bytes]) -> bool:
        """Whether what its visits made is gone; what the coordinator gave can be fetched again."""
        given = {ref.digest for ref in [self.order.kit, *self.order.vectors.values()]}
        return bool((self.live() & missing) - given)

    def apply(self, record: OfTour) -> None:
        """Change by one record."""
        match record:
            case VisitIssued():
                self.attempts += 1
                visit = self.open_visits.setdefault(self.hop + record.at, OpenVisit())
                visit.device, visit.attempt = record.device, self.attempts
            case VisitKept():
                self.reports.append(record.report)
                if self.order.merges:
                    self._over(record.report.hop, WaveResult(record.vectors["model"], record.report.samples))
                else:
                    self._hand_on(record)
                    self._over(record.report.hop)
            case VisitMissed():
                self.reports.append(record.report)
                self._missed(record.report.hop, record.then)
            case WaveMerged():
                self._hand_on(record)
                # A device that failed in one wave is asked again in the next.
                self.route, self.spares = list(self.order.hops), list(self.order.spares)
                self.hop, self.results = self.hop + len(self.route), {}
            case TourEnded():
                self.toured = record.toured

    def _hand_on(self, record: VisitKept | WaveMerged) -> None:
        self.vectors |= record.vectors
        self.handout |= record.handout

    def _missed(self, hop: int, then: str) -> None:
        self.lost += 1
        if then == "skip":
            self._over(hop)
            return
        visit = self.open_visits.setdefault(hop, OpenVisit())
        visit.device, visit.tries = None, visit.tries + 1
        if then == "swap":
            self.route[self.place(hop)] = self.spares.pop(0)

    def _over(self, hop: int, result: WaveResult | None = None) -> None:
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
    """The visits of past tours that were kept, for devices that did not hear it."""
    attempts_before: int | msgspec.UnsetType = msgspec.UNSET
    """The number that the visits of a new tour follow, where records were lost and numbers with them."""

    def apply(self, record: Record) -> None:
        """Change by one record."""
        match record:
            case TourTaken():
                self.tours[key_of(record.order.id)] = TourState.of(record.order, self._skipped)
            case TourDropped():
                self._drop(record.key)
            case _:
                self.tours[record.key].apply(record)

    def objection(self, record: Record) -> str | None:
        """Why a record does not follow, where an earlier one is missing."""
        if isinstance(record, TourTaken):
            return None
        tour = self.tours.get(record.key)
        if tour is None:
            return f"no tour has the key {record.key} (keys count from 0)"
        return None if isinstance(record, TourDropped) else tour.objection(record)

    @property
    def _skipped(self) -> int:
        return self.attempts_before if isinstance(self.attempts_before, int) else 0

    def mend(self) -> None:
        """Records are missing: number visits beyond all that devices may have seen."""
        self.attempts_before = self._skipped + ATTEMPTS_SKIPPED
        for tour in self.tours.values():
            tour.attempts += ATTEMPTS_SKIPPED

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        """Begin the tours anew whose checkpoint or result is gone."""
        lacking = [key for key, tour in self.tours.items() if tour.lacks(missing)]
        for key in lacking:
            self.tours[key] = self.tours[key].anew()
        return [f"models that the tour {self.tours[key].order.id} made are gone; it begins anew" for key in lacking]

    def _drop(self, key: Key) -> None:
        tour = self.tours.pop(key)
        self.fences.pop(key, None)
        self.fences[key] = tour.order.id.attempt
        for report in tour.reports:
            if report.status == "done":
                self.accepted[f"{key}/{report.hop}/{report.device}"] = True
        _bound(self.fences, TOURS_REMEMBERED)
        _bound(self.accepted, VISITS_REMEMBERED)

    def was_accepted(self, visit: VisitId, device: str) -> bool:
        """Whether a result of this device was kept for this hop."""
        key = key_of(visit)
        if tour := self.tours.get(key):
            return any(r.hop == visit.hop and r.device == device and r.status == "done" for r in tour.reports)
        return f"{key}/{visit.hop}/{device}" in self.accepted


def _bound(kept: dict[str, Any], limit: int) -> None:
    """Forget the oldest beyond the limit."""
    while len(kept) > limit:
        del kept[next(iter(kept))]


def key_of(it: TourId | VisitId) -> Key:
    """The tour, or the tour of a visit, without its attempt."""
    number = it.number if isinstance(it, TourId) else it.tour
    return f"{it.job}/{it.round}/{number}"
