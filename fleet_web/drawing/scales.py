"""From numbers to places on a picture: ranges, ticks at round numbers, and what is written beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.protocol.figure_names import DIRECTIONS, SHARES, significant

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDE = 30.0
"""Positive values that differ by more than this factor are drawn by their logarithm."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """A range of values and the stretch of a picture that it takes: `first` is where `low` is drawn."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is drawn; outside its range, at the range's end."""
        low, high, at = (self._of(each) for each in (self.low, self.high, min(max(value, self.low), self.high)))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.first + share * (self.last - self.first), 2)

    def _of(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, most: int = 5, *, whole: bool = False) -> list[float]:
        """At most so many round numbers inside the range."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            return [10.0**power for power in powers][:: max(1, math.ceil(len(powers) / most))]
        return _round_numbers(self.low, self.high, most, whole=whole)


def _round_numbers(low: float, high: float, most: int, *, whole: bool) -> list[float]:
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * power for step in STEPS if span / (step * power) <= most)
    step = max(1.0, math.ceil(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, first + most + 2) if at * step <= high + 1e-9 * span]


def value_scale(name: str, values: Iterable[float], first: float, last: float) -> Scale:
    """The scale of a figure or a measure: shares from 0 to 1, others as far as they go.

    Figures that differ by far are drawn by their logarithm, measures of arrangements never.
    """
    known = [value for value in values if math.isfinite(value)]
    if name in SHARES or not known:
        return Scale(0.0, 1.0, first, last)
    low, high = min(known), max(known)
    if name in DIRECTIONS and low > 0 and high > WIDE * low:
        return Scale(low, high, first, last, log=True)
    if low >= 0 and high <= 1:
        return Scale(0.0, 1.0 if high > 0.5 else high or 1.0, first, last)
    return Scale(min(0.0, low) if low > -high else low, high if high > low else low + 1, first, last)


def across_scale(values: Iterable[float], first: float, last: float) -> Scale:
    """The scale of rounds, seconds or megabytes, from the first to the last."""
    known = [value for value in values if math.isfinite(value)]
    high = max(known, default=1.0)
    low = min(0.0, min(known, default=0.0))
    return Scale(low, high if high > low else low + 1.0, first, last)


def tick_text(name: str, value: float) -> str:
    """A number beside an axis."""
    if name in SHARES:
        return f"{100 * value:.0f} %"
    return significant(value)


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a time of this length reads well."""
    for per, unit in ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours")):
        if seconds < 300 * per:
            return per, unit
    return 86_400.0, "days"
