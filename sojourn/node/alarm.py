"""A timer for many keys: it tells which of them are due."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Who = TypeVar("Who")


class Alarm(Generic[Who]):
    """Times in a heap. It may go off early: who was put off meanwhile looks at the clock and sets it again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Who]] = []
        self._set: dict[Who, float] = {}
        self._count = 0

    def set(self, who: Who, when: float) -> None:
        """Go off at this time; one that goes off earlier is enough."""
        if who not in self._set or self._set[who] > when:
            self._set[who] = when
            self._count += 1
            heapq.heappush(self._heap, (when, self._count, who))

    def forget(self, who: Who) -> None:
        """Drop the time of this key."""
        self._set.pop(who, None)

    def due(self, now: float) -> list[Who]:
        """Those whose time has come; they are not looked after again before they ask for it."""
        found = []
        while (when := self.wake_at()) is not None and when <= now:
            who = heapq.heappop(self._heap)[2]
            del self._set[who]
            found.append(who)
        return found

    def wake_at(self) -> float | None:
        """The earliest time that is set, if any is."""
        while self._heap and self._set.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
