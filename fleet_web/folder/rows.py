"""Rows of a folder's tables as the messages that a coordinator would send: checked, cut and cleaned like those."""

from __future__ import annotations

import math
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, get_args

from coordinator.results.measures import MEASURES
from coordinator.results.task_figures import PLAIN
from sojourn.protocol.fleet_messages import VisitNote
from sojourn.protocol.limits import MOST, MOST_BYTES, MOST_FIGURE, MOST_HOPS, MOST_SECONDS
from sojourn.protocol.wire import RoundReport, VisitStatus
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME, REASON = 63, 500
"""Characters of a name, and of a reason."""
STATUSES: tuple[VisitStatus, ...] = get_args(VisitStatus)


def round_of(row: Mapping[str, str], more: Sequence[str]) -> RoundReport | None:
    """A row of `rounds.csv`, with the figures `more`; None where it makes no sense."""
    try:
        number = _whole(row["round"], MOST)
        tours, visits, lost = (_whole(row[key], MOST) for key in ("tours", "visits", "lost"))
        traffic = _whole(row["bytes"], MOST_BYTES)
        seconds, clock = (_within(row[key], MOST_SECONDS) for key in ("seconds", "clock"))
    except (KeyError, ValueError, OverflowError):
        return None
    accuracy, loss = (_figure(row.get(name, "")) for name in PLAIN)
    quality = {name: value for name in MEASURES if math.isfinite(value := _figure(row.get(name, "")))}
    figures = {name: _figure(row.get(name, "")) for name in more}
    return RoundReport(number, accuracy, loss, tours, visits, lost, traffic, seconds, quality, (), clock, figures)


def visit_of(row: Mapping[str, str]) -> VisitNote | None:
    """A row of `visits.csv`; None where it makes no sense."""
    try:
        job, round_, tour = row["tour"].rsplit("/", 2)
        status = next(it for it in STATUSES if it == row["status"])
        loss = _figure(row["loss"])
        return VisitNote(
            _within(row["clock"], MOST_SECONDS),
            _name(job),
            _whole(round_, MOST),
            "train",
            _whole(tour, MOST),
            _whole(row["hop"], MOST_HOPS),
            _name(row["site"]),
            _name(row["device"]),
            status,
            intern(clean(row["reason"], REASON)),
            _whole(row["samples"], MOST),
            _within(row["seconds"], MOST_SECONDS),
            loss if math.isfinite(loss) else None,
        )
    except (KeyError, ValueError, OverflowError, StopIteration):
        return None


@lru_cache(10_000)
def _name(text: str) -> str:
    return intern(clean(text, NAME))


def _whole(text: str, most: int) -> int:
    return min(max(0, int(text)), most)


def _within(text: str, most: float) -> float:
    """A number from 0 to `most`; what is no number is an error."""
    value = float(text)
    if math.isnan(value):
        raise ValueError("no number")
    return min(max(0.0, value), most)


def _figure(text: str) -> float:
    """A figure; NaN where there is none."""
    try:
        value = float(text or "nan")
    except ValueError:
        return math.nan
    return value if abs(value) <= MOST_FIGURE else math.nan
