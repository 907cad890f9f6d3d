"""The state that the parts of an edge server share: its durable state, and the running tours and visits."""

from __future__ import annotations

import math
from typing import Any

from hierarchy.edge.records import EdgeState, Key, Record, TourState
from hierarchy.edge.tables import TOUR, VISIT, TourEvent, TourStep, VisitEvent, VisitStep
from sojourn.node.machine import Append, CancelWork, Effect, StartWork
from sojourn.node.pending import Fetches, Outbox, TimerHeap
from sojourn.parts import TourPolicy
from sojourn.protocol.limits import SHORTEST
from sojourn.protocol.messages import Visited
from sojourn.protocol.topics import Address

HEARTBEAT = 5.0
"""Seconds between two signs of life of an unchanged tour; less if the site's lease is short."""
PAUSE = 1.0
"""Minimum seconds between two signs of life of a tour that changes."""


class RunningVisit:
    """A visit whose device was asked: its state, its lease and deadline, and the returned result."""

    def __init__(self, lease: float, now: float, deadline: float | None = None) -> None:
        self.state = VISIT.step(VisitStep.DUE, VisitEvent.HANDED_OVER)
        self.began = now
        self.lease = max(lease, SHORTEST)
        self.deadline = deadline
        """The maximum duration of the visit in seconds, however often the device sends; None: no limit."""
        self.lease_ends: float | None = None
        """None once the result has arrived: the device owes nothing more."""
        self._begin_lease(now)
        self.steps = (0, 0)
        self.prepared = False
        """Whether the device trains, so that the next device was asked to prepare."""
        self.result: Visited | None = None
        self.working: str | None = None
        """The key of the work that runs for this visit."""

    def step(self, event: VisitEvent) -> None:
        """Move to the state that follows an event."""
        self.state = VISIT.step(self.state, event)

    def renew(self, now: float) -> None:
        """Start the lease again after a sign of life from the device."""
        if self.lease_ends is not None:
            self._begin_lease(now)

    def _begin_lease(self, now: float) -> None:
        self.lease_ends = min(now + self.lease, self._deadline_at)

    @property
    def _deadline_at(self) -> float:
        return math.inf if self.deadline is None else self.began + self.deadline

    def past_deadline(self, now: float) -> bool:
        """Return whether the visit has exceeded its deadline."""
        return now >= self._deadline_at


class RunningTour:
    """The volatile side of a tour: its state, its running visits, its heartbeat, the work for the tour as a whole."""

    def __init__(self, policy: TourPolicy, event: TourEvent) -> None:
        self.state = TOUR.step(TourStep.NOT_HERE, event)
        self.heartbeat = max(SHORTEST, min(HEARTBEAT, policy.site_lease / 4))
        self.pause = min(PAUSE, self.heartbeat)
        self.heartbeat_at: float | None = None
        self.reported_at: float | None = None
        self.gather_at: float | None = None
        """When to retry a failed fetch."""
        self.visits: dict[int, RunningVisit] = {}
        """The visits whose devices were asked, by hop."""
        self.latest: int | None = None
        """The hop with the latest message."""
        self.traffic = 0
        self.working: str | None = None
        """The key of the work that runs for the whole tour."""
        self._before: tuple[int, tuple[float, ...], int] | None = None

    def step(self, event: TourEvent) -> None:
        """Move to the state that follows an event."""
        self.state = TOUR.step(self.state, event)

    def before(self, tour: TourState) -> tuple[tuple[float, ...], int]:
        """Return the usual strides, and the number of kept visits, before the current wave.

        Results of the wave itself do not count, so the order in which they arrive does not matter.
        """
        if self._before is None or self._before[0] != tour.hop:
            done = [it for it in tour.reports if it.status == "done" and it.hop < tour.hop]
            norms = (*tour.order.norms, *(it.stride for it in done if it.norm > 0))
            self._before = tour.hop, norms, len(done)
        return self._before[1:]

    def live(self) -> set[bytes]:
        """Return the digests of the blobs that are being fetched or checked."""
        results = [visit.result for visit in self.visits.values() if visit.result]
        return {ref.digest for result in results for ref in result.vectors.values()}


VisitKey = tuple[Key, int]
"""A visit: its tour and its hop."""
WorkOwner = tuple[Key, int | None]
"""A visit, or a tour itself."""


class Site:
    """The tours of a site, their running state, and which visit occupies which device."""

    def __init__(self, name: str, cloud: Address) -> None:
        self.name, self.cloud = name, cloud
        self.state = EdgeState()
        self.outbox = Outbox()
        self.running: dict[Key, RunningTour] = {}
        """The volatile side of each tour in the state."""
        self.at: dict[str, VisitKey] = {}
        """The visit that a device was asked for, possibly before a restart."""
        self.waiting: dict[str, dict[VisitKey, None]] = {}
        """By device, the visits that wait until it is free, in order of arrival."""
        self.fetches: Fetches[WorkOwner] = Fetches()
        self.alarm: TimerHeap[WorkOwner] = TimerHeap()
        self._works: dict[str, WorkOwner] = {}
        """The visit or tour that each piece of work belongs to, by the work's key."""

    def visit(self, where: VisitKey) -> RunningVisit | None:
        """Return a visit whose device was asked; None before and after."""
        key, hop = where
        running = self.running.get(key)
        return running.visits.get(hop) if running else None

    def tour(self, key: Key) -> tuple[TourState, RunningTour]:
        """Return a tour's durable and volatile side."""
        return self.state.tours[key], self.running[key]

    def write(self, record: Record, *, sync: bool = False, blobs: tuple[bytes, ...] = ()) -> Append:
        """Change the durable state; the record must be in the journal before any other effect leaves."""
        self.state.apply(record)
        return Append(record, sync=sync, blobs=blobs)

    def start_work(self, owner: WorkOwner, number: int, work: Any) -> list[Effect]:
        """Start work for a visit or a tour, under a unique key, so that late outcomes are ignored."""
        key, _ = owner
        work_key = f"{key}/{self.state.tours[key].order.id.attempt}.{number} {type(work).__name__}"
        self._busy(owner).working = work_key
        self._works[work_key] = owner
        return [StartWork(work_key, work)]

    def cancel_work(self, owner: WorkOwner) -> list[Effect]:
        """Cancel the work for a visit or a tour, if there is any."""
        busy = self._busy(owner)
        work_key, busy.working = busy.working, None
        if work_key is None:
            return []
        del self._works[work_key]
        return [CancelWork(work_key)]

    def worked(self, work_key: str) -> WorkOwner | None:
        """Return the owner of work that has ended; None if it was cancelled."""
        owner = self._works.pop(work_key, None)
        if owner is not None:
            self._busy(owner).working = None
        return owner

    def live(self) -> set[bytes]:
        """Return the digests of the blobs that a tour, or a result in transit, refers to."""
        live: set[bytes] = set()
        for tour in self.state.tours.values():
            live |= tour.live()
        for running in self.running.values():
            live |= running.live()
        return live

    def _busy(self, owner: WorkOwner) -> RunningTour | RunningVisit:
        key, hop = owner
        return self.running[key] if hop is None else self.running[key].visits[hop]
