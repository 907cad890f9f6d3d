"""Where tours and their visits are just now: what an edge server may forget, because a restart finds it out again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hierarchy.edge.tour_table import NOT_HERE, TOUR
from hierarchy.edge.visit_table import DUE, VISIT
from sojourn.protocol.limits import SHORTEST

if TYPE_CHECKING:
    from hierarchy.edge.records import TourState
    from hierarchy.edge.tour_table import TourEvent
    from hierarchy.edge.visit_table import VisitEvent
    from sojourn.parts import TourPolicy
    from sojourn.protocol.messages import Visited

HEARTBEAT = 5.0
"""Seconds between two signs of life of a tour in which nothing changes; fewer where the site's lease is short."""
PAUSE = 1.0
"""Seconds between two signs of life of a tour in which something changes."""


class RunningVisit:
    """A visit whose device was asked: its state, its lease and deadline, and the result that came back."""

    def __init__(self, lease: float, now: float, deadline: float | None = None) -> None:
        self.state = VISIT.step(DUE, "handed over")
        self.began = now
        self.lease = max(lease, SHORTEST)
        self.deadline = deadline
        """The seconds that it may take in all, however often the device speaks; None: for ever."""
        self.lease_ends: float | None = None
        """None once the result is here: then nothing more is expected of the device."""
        self._begin_lease(now)
        self.steps = (0, 0)
        self.prepared = False
        """Whether the device trains, so that the next one was asked to get ready."""
        self.result: Visited | None = None
        self.working: str | None = None
        """The key of the work that is being done for this visit."""

    def step(self, event: VisitEvent) -> None:
        """Go to the state that follows an event."""
        self.state = VISIT.step(self.state, event)

    def renew(self, now: float) -> None:
        """The device gave a sign of life: its lease begins anew."""
        if self.lease_ends is not None:
            self._begin_lease(now)

    def _begin_lease(self, now: float) -> None:
        self.lease_ends = min(now + self.lease, self._over_at)

    @property
    def _over_at(self) -> float:
        return math.inf if self.deadline is None else self.began + self.deadline

    def past_deadline(self, now: float) -> bool:
        """Whether it has taken all the time that it may."""
        return now >= self._over_at


class RunningTour:
    """The volatile side of a tour: its state, the visits under way, its heartbeat, the work for the tour as a whole."""

    def __init__(self, policy: TourPolicy, event: TourEvent) -> None:
        self.state = TOUR.step(NOT_HERE, event)
        self.heartbeat = max(SHORTEST, min(HEARTBEAT, policy.site_lease / 4))
        self.pause = min(PAUSE, self.heartbeat)
        self.heartbeat_at: float | None = None
        self.reported_at: float | None = None
        self.gather_at: float | None = None
        """When to fetch again what could not be had."""
        self.visits: dict[int, RunningVisit] = {}
        """The visits whose devices were asked, by hop."""
        self.latest: int | None = None
        """The hop that was heard of last."""
        self.traffic = 0
        self.working: str | None = None
        """The key of the work that is being done for the whole tour."""
        self._before: tuple[int, tuple[float, ...], int] | None = None

    def step(self, event: TourEvent) -> None:
        """Go to the state that follows an event."""
        self.state = TOUR.step(self.state, event)

    def before(self, tour: TourState) -> tuple[tuple[float, ...], int]:
        """The usual strides, and how many visits were kept, before the present wave.

        Results of the wave itself do not count, so the order in which they arrive changes nothing.
        """
        if self._before is None or self._before[0] != tour.hop:
            done = [it for it in tour.reports if it.status == "done" and it.hop < tour.hop]
            norms = (*tour.order.norms, *(it.stride for it in done if it.norm > 0))
            self._before = tour.hop, norms, len(done)
        return self._before[1:]

    def live(self) -> set[bytes]:
        """The blobs that are being fetched or checked."""
        results = [visit.result for visit in self.visits.values() if visit.result]
        return {ref.digest for result in results for ref in result.vectors.values()}
