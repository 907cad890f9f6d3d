"""Where a tour is just now: what an edge server may forget, because a restart finds it out again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sojourn.messages import Visited
    from sojourn.parts import TourPolicy

HEARTBEAT = 5.0


class Leg:
    """The volatile side of a tour: its lease, its present result, the blobs it waits for."""

    def __init__(self, policy: TourPolicy) -> None:
        self.lease = policy.lease
        self.heartbeat = min(HEARTBEAT, policy.site_lease / 4)
        self.heartbeat_at: float | None = None
        self.lease_ends: float | None = None
        self.pull_again_at: float | None = None
        self.began = 0.0
        self.steps = (0, 0)
        self.traffic = 0
        self.prepared = False
        self.result: Visited | None = None
        self.lacking: set[bytes] = set()
        self.working: str | None = None
        """The key of the work that is being done for this tour."""
        self.waits_for: str | None = None
        """The device that another tour is at, and that this one is to visit next."""

    def set_out(self, now: float) -> None:
        """The model is on its way to a device."""
        self.began, self.lease_ends = now, now + self.lease
        self.steps, self.prepared, self.result = (0, 0), False, None
        self.waits_for = None

    def renew(self, now: float) -> None:
        """The device gave a sign of life."""
        if self.lease_ends is not None:
            self.lease_ends = now + self.lease

    def leave(self) -> None:
        """The visit is over."""
        self.lease_ends, self.result, self.lacking = None, None, set()

    def live(self) -> set[bytes]:
        """The blobs that are being fetched or checked."""
        fetched = {ref.digest for ref in self.result.vectors.values()} if self.result else set()
        return self.lacking | fetched
