"""When it is time to look at a simulation again: often enough for people, and all looks take next to nothing."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFRESH = 0.3
"""Seconds of real time between two looks, at least."""
SHARE = 0.005
"""The share of the time that looks take, drawing included, when nothing has been finished."""
SHARE_WITH_NEWS = 0.007
"""The share up to which a round that has closed is shown at once."""


class LookPace:
    """Counts the time of looks; one that takes long is followed by a longer pause."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began, self._spent = clock(), 0.0
        self.next = self._began
        """When the next look is due, on the clock."""

    def is_due(self, *, news: bool) -> bool:
        """Whether to look now; `news` says that there is something that was not shown yet."""
        now = self._clock()
        return now >= self.next or (news and self._spent < SHARE_WITH_NEWS * (now - self._began))

    @contextmanager
    def look(self) -> Iterator[None]:
        """Look while this is open."""
        before = self._clock()
        yield
        now = self._clock()
        self._spent += now - before
        self.next = now + max(REFRESH, (now - before) / SHARE)
