"""What a node's figures were at one moment, in plain numbers: made on its own thread, written out on another."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sojourn.errors import Fault
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.metrics.catalogue import Metric

BOUNDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Seconds up to which durations are counted together: from a visit on digits to a round over a slow night."""
LABEL = 64
"""Characters of a label's value."""


class Distribution(NamedTuple):
    """How many durations were not longer than each of `BOUNDS`, then how many there were, and their sum."""

    counts: tuple[int, ...]
    sum: float


class Durations:
    """Counts durations by their length. It is added to and read on one thread."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one more."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def seen(self) -> Distribution:
        """What was counted so far."""
        return Distribution(tuple(accumulate(self._counts)), self._sum)


class Reading:
    """Figures, each by the values of its labels."""

    def __init__(self) -> None:
        self.values: dict[Metric, dict[tuple[str, ...], float | Distribution]] = {}

    def put(self, metric: Metric, value: float | Distribution, *labels: str) -> None:
        """Set a figure; text of others becomes a label only on one line, and cut."""
        if len(labels) != len(metric.labels):
            raise Fault(f"{metric.name} has the labels {metric.labels}, and not {labels}")
        self.values.setdefault(metric, {})[tuple(clean(label, LABEL) for label in labels)] = value

    def put_one_of(self, metric: Metric, words: Iterable[str], word: str, *labels: str) -> None:
        """Set which of a closed set of words holds now: 1 for it, 0 for all others."""
        for each in words:
            self.put(metric, float(each == word), *labels, each)


class FigureSource(Protocol):
    """Who knows figures of a node. Read on the node's own thread, where nothing changes meanwhile."""

    def read(self, into: Reading, now: float) -> None:
        """Put what is known now; it must be quick, for the node waits. `now` is by a clock on the wall."""


class VisitCounts:
    """Visits counted by outcome and reason, and how long those took that came to something."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.durations = Durations()

    def add(self, outcome: str, reason: str, seconds: float | None = None) -> None:
        """Count one more visit."""
        self.counts[outcome, reason] += 1
        if seconds is not None:
            self.durations.add(seconds)

    def put(self, into: Reading, visits: Metric, durations: Metric, known: Iterable[tuple[str, str]]) -> None:
        """Set both figures; `known` are the outcomes and reasons that are told from the start, as 0."""
        for outcome, reason in known:
            into.put(visits, self.counts[outcome, reason], outcome, reason)
        into.put(durations, self.durations.seen())
