"""How many visits a second a simulation gets through, from successive views of it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.console.following import JobProgress

WINDOW = 10.0
"""Seconds that a rate looks back: long enough to be calm, short enough to be of now."""


class VisitRate:
    """Visits a second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, progress: JobProgress, now: float) -> float | None:
        """The rate; None while nobody counts visits, or none has ended yet."""
        if progress.visits is None:
            return None
        self._seen.append((now, progress.visits))
        # The newest of those that lie a whole window back is where it is counted from.
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW:
            self._seen.popleft()
        since, before = self._seen[0]
        return (progress.visits - before) / (now - since) if progress.visits > before and now > since else None


def describe_rate(per_second: float | None) -> str:
    """The rate, for people; nothing where nothing is known."""
    if per_second is None:
        return ""
    if per_second < 1:
        return f"{60 * per_second:.0f} visits/min"
    return f"{per_second:.1f} visits/s" if per_second < 10 else f"{per_second:,.0f} visits/s"
