"""Where tours are just now: what an edge server may forget, because a restart finds it out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hierarchy.edge.records import TourState
    from sojourn.parts import TourPolicy
    from sojourn.protocol.messages import Visited

HEARTBEAT = 5.0
PAUSE = 1.0
"""Seconds between two signs of life of a tour, when nobody asks."""


class Stay:
    """The model at one device: its lease, and the result that came back."""

    def __init__(self, lease: float, now: float) -> None:
        self.began = now
        self.lease = lease
        self.lease_ends: float | None = now + lease
        self.steps = (0, 0)
        self.prepared = False
        self.result: Visited | None = None
        self.working: str | None = None
        """The key of the work that is being done for this visit."""

    def renew(self, now: float) -> None:
        """The device gave a sign of life."""
        if self.lease_ends is not None:
            self.lease_ends = now + self.lease


class Leg:
    """The volatile side of a tour: the devices it is at, its heartbeat, the work at its own end."""

    def __init__(self, policy: TourPolicy) -> None:
        self.heartbeat = min(HEARTBEAT, policy.site_lease / 4)
        self.pause = min(PAUSE, self.heartbeat)
        self.heartbeat_at: float | None = None
        self.told_at: float | None = None
        self.gathering = False
        """Whether what the devices will need is still being fetched."""
        self.gather_at: float | None = None
        self.stays: dict[int, Stay] = {}
        """The visits that are under way, by hop."""
        self.latest: int | None = None
        """The hop that was heard of last."""
        self.traffic = 0
        self.working: str | None = None
        """The key of the work that is being done for the whole tour."""
        self._before: tuple[int, tuple[float, ...], int] | None = None

    def before(self, tour: TourState) -> tuple[tuple[float, ...], int]:
        """The usual strides, and how many visits were kept, before the present wave: whatever came first within it."""
        if self._before is None or self._before[0] != tour.hop:
            done = [it for it in tour.reports if it.status == "done" and it.hop < tour.hop]
            norms = (*tour.order.norms, *(it.stride for it in done if it.norm > 0))
            self._before = tour.hop, norms, len(done)
        return self._before[1:]

    def live(self) -> set[bytes]:
        """The blobs that are being checked."""
        results = [stay.result for stay in self.stays.values() if stay.result]
        return {ref.digest for result in results for ref in result.vectors.values()}
