"""Pauses between the steps of a training, so that it takes no more than its share. What is computed stays the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE = 0.25
"""The longest sleep at once: after it the pace is looked at again, and a sign of life given."""
_WORTH_A_PAUSE = 0.01


def due(cpu: float, wall: float, cores: float, pace: float) -> float:
    """The least seconds that work should last which used `cpu` seconds of all cores and took `wall` seconds."""
    return max(wall, cpu / cores) / pace


class Pacing:
    """Sleeps after steps. `pace`, the share of the time in which to work, may be set by another thread."""

    def __init__(
        self,
        cores: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Use as many cores as this on average, which may be less than one."""
        self.pace = 1.0
        self.cores = cores
        self._clock, self._used, self._sleep = clock, used, sleep
        self._since, self._spent = clock(), used()

    def begin(self) -> None:
        """Work begins: what was before does not count."""
        self._since, self._spent = self._clock(), self._used()

    def rest(self, alive: Callable[[], None]) -> None:
        """Pause for as long as the work since the last pause asks for; `alive` is called in between."""
        now, used = self._clock(), self._used()
        cpu, wall, began = used - self._spent, now - self._since, self._since
        if due(cpu, wall, self.cores, self.pace) - wall < _WORTH_A_PAUSE:
            return
        while (left := began + due(cpu, wall, self.cores, self.pace) - self._clock()) > 0:
            self._sleep(min(left, SLICE))
            alive()
        # What other threads burn during the pause counts for the next one.
        self._since, self._spent = self._clock(), used
