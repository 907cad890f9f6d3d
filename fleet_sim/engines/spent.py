"""What an engine has done so far, in numbers, for whoever wants to know where a simulation's time went."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Spent:
    """Counts of an engine; workers' threads add to them too.

    visits: those that were trained, or failed. together: those of them whose steps ran as one with others'. training:
    seconds of processor time of whoever trained. waiting: seconds that the simulation waited for results.
    """

    visits: int = 0
    together: int = 0
    training: float = 0.0
    waiting: float = 0.0
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, visits: int = 0, together: int = 0, training: float = 0.0, waiting: float = 0.0) -> None:
        """Add to the counts."""
        with self._lock:
            self.visits += visits
            self.together += together
            self.training += training
            self.waiting += waiting
