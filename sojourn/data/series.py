"""Series: rows that follow each other in time, where they break off, and the windows of a forecast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.data.labels import shorten
from sojourn.data.windows import starts_in, windows
from sojourn.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.samples import Content
    from sojourn.protocol.spec import InputSpec
    from sojourn.protocol.task import TaskSpec

GAP = 1.5
"""So many of the usual steps from one row to the next are a gap."""


@dataclass(frozen=True)
class Series:
    """How the rows of a content follow each other.

    pieces: where each unbroken stretch begins and where it ends, a row for each; machine: which of `machines` it is of.
    gaps: jumps in time; missing: rows that cannot be used; timed: whether rows say when they were.
    """

    pieces: NDArray[np.int64]
    machine: NDArray[np.int64]
    machines: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    gaps: int = 0
    missing: int = 0
    timed: bool = False

    @property
    def longest(self) -> int:
        """Steps in the longest piece."""
        return int((self.pieces[:, 1] - self.pieces[:, 0]).max(initial=0))


class Timeline(NamedTuple):
    """What rows say of themselves: of which of `machines` they are, and when they were, if that is known."""

    machine: NDArray[np.int64]
    machines: tuple[str, ...]
    time: NDArray[np.float64] | None


class Cut(NamedTuple):
    """Samples that were cut out of series, and the series that each is of."""

    x: NDArray[Any]
    y: NDArray[Any]
    machine: NDArray[np.int64]
    machines: tuple[str, ...]


def time_of(cell: str) -> float:
    """A time in seconds: a number as it is, or a date with or without a time; ValueError where it is neither."""
    text = cell.strip()
    try:
        found = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
            found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ValueError(f"{text[:40]!r} is no time") from None
    if not isfinite(found):
        raise ValueError(f"{text[:40]!r} is no time")
    return found


def in_time(content: Content, channels: tuple[str, ...], timeline: Timeline) -> Content:
    """The same rows in the order of time, machine by machine, with what is known of their gaps."""
    machine, machines, time = timeline
    order = np.argsort(machine, kind="stable") if time is None else np.lexsort((time, machine))
    machine, time, twice = machine[order], None if time is None else time[order], 0
    if time is not None and len(time):
        again = np.r_[False, (np.diff(machine) == 0) & (np.diff(time) <= 0)]
        twice = int(np.count_nonzero(again))
        order, machine, time = order[~again], machine[~again], time[~again]
    x = content.x if np.array_equal(order, np.arange(len(content.x))) else content.x[order]
    series = _series(x, machine, machines, time, channels)
    skipped = [*content.skipped, *([f"{twice} rows with a time that another one has"] if twice else [])]
    return replace(content, x=x, which=content.which[order], skipped=(*skipped, *_told(series)), series=series)


def series_in(content: Content) -> Content:
    """An array as series: (steps,), (steps, channels), or several of one length as (series, steps, channels)."""
    x = content.x
    if x.ndim not in (1, 2, 3) or x.dtype.kind not in "buif":
        raise DataError(
            f"{content.source} holds an array of shape {x.shape} and type {x.dtype}: a series is numbers of the shape "
            "(steps,) or (steps, channels), several are (series, steps, channels)"
        )
    count, steps, channels = (1, len(x), prod(x.shape[1:])) if x.ndim < 3 else x.shape
    machine = np.repeat(np.arange(count), steps)
    rows = x.reshape(count * steps, channels)
    names = tuple(str(at) for at in range(count)) if x.ndim == 3 else ()
    series = _series(rows, machine, names, None, content.target_names)
    return replace(content, x=rows, skipped=(*content.skipped, *_told(series)), series=series)


def forecast_windows(content: Content, wanted: InputSpec, task: TaskSpec) -> Cut:
    """The windows of a forecast: what is seen, and what is to come of the channels that are predicted."""
    if task.window is None or content.series is None:
        raise DataError(f"{content.source}: the job says no window for its forecast")
    steps, horizon, stride = task.window.steps, task.window.horizon, task.window.stride
    series, channels, source = content.series, content.x.shape[1], content.source
    if prod(wanted.shape) != steps * channels:
        raise DataError(
            f"{source} has series of {channels} channels{_names(series.channels)}, so {steps} steps of them are "
            f"{steps * channels} numbers; the model expects the shape {wanted.shape}: leave columns out with "
            "data.ignore, or name the right file"
        )
    starts = starts_in(series.pieces, steps + horizon, stride)
    if not len(starts):
        raise DataError(
            f"{source}: its longest series without a gap has {series.longest:,} steps, and a window needs {steps:,} "
            f"that are seen and {horizon:,} that are predicted; more data is needed, or a job with fewer steps"
        )
    places = _channels(series.channels, channels, task, source)
    values = content.x if places == list(range(channels)) else np.ascontiguousarray(content.x[:, places])
    shape = task.target.shape if task.target else (horizon, len(places))
    if prod(shape) != horizon * len(places):
        raise DataError(f"{source}: {horizon} steps of {len(places)} channels are no target of the shape {shape}")
    piece = np.searchsorted(series.pieces[:, 0], starts, side="right") - 1
    return Cut(
        windows(content.x, starts, steps, wanted.shape, content.x.dtype),
        windows(values, starts + steps, horizon, shape, np.float32),
        series.machine[piece],
        series.machines,
    )


def latest_windows(content: Content, wanted: InputSpec, steps: int) -> NDArray[np.generic]:
    """The last steps of each series, from which it goes on; those since its last gap must be enough."""
    found = content if content.series else series_in(content)
    series, channels = found.series, found.x.shape[1]
    if series is None or prod(wanted.shape) != steps * channels:
        raise DataError(f"{content.source} has {channels} channels, the model expects the shape {wanted.shape}")
    ends = {int(machine): stop for machine, (_, stop) in zip(series.machine, series.pieces.tolist(), strict=True)}
    begins = {int(machine): start for machine, (start, _) in zip(series.machine, series.pieces.tolist(), strict=True)}
    short = next((machine for machine in ends if ends[machine] - begins[machine] < steps), None)
    if short is not None or not ends:
        there = ends[short] - begins[short] if short is not None else 0
        raise DataError(f"{content.source}: {there} steps are there since the last gap, the model needs {steps}")
    return np.stack([found.x[stop - steps : stop] for stop in ends.values()]).reshape(-1, *wanted.shape)


def _series(
    x: NDArray[np.generic],
    machine: NDArray[np.int64],
    machines: tuple[str, ...],
    time: NDArray[np.float64] | None,
    channels: tuple[str, ...],
) -> Series:
    if not len(x):
        return Series(np.empty((0, 2), np.int64), machine, machines, channels)
    broken, gaps = _breaks(machine, time)
    whole = np.isfinite(x).all(axis=1) if x.dtype.kind == "f" else np.ones(len(x), np.bool_)
    before, after = np.r_[False, whole[:-1]] & ~broken, np.r_[whole[1:], False] & ~np.r_[broken[1:], True]
    pieces = np.stack([np.flatnonzero(whole & ~before), np.flatnonzero(whole & ~after) + 1], axis=1).astype(np.int64)
    missing = int(np.count_nonzero(~whole))
    return Series(pieces, machine[pieces[:, 0]], machines, channels, gaps, missing, timed=time is not None)


def _breaks(machine: NDArray[np.int64], time: NDArray[np.float64] | None) -> tuple[NDArray[np.bool_], int]:
    """Where a row does not follow the one before it, and how often that is because of a jump in time."""
    broken = np.r_[True, np.diff(machine) != 0]
    if time is None:
        return broken, 0
    gaps = 0
    for start, stop in zip(*_stretches(broken), strict=True):
        steps = np.diff(time[start:stop])
        far = steps > GAP * float(np.median(steps)) if len(steps) else np.zeros(0, np.bool_)
        broken[start + 1 : stop] |= far
        gaps += int(np.count_nonzero(far))
    return broken, gaps


def _stretches(broken: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
    starts = np.flatnonzero(broken)
    return starts.tolist(), [*starts[1:].tolist(), len(broken)][: len(starts)]


def _told(series: Series) -> list[str]:
    told = [f"windows over {series.gaps:,} gaps in time"] if series.gaps else []
    return [*told, f"windows over {series.missing:,} rows with missing values"] if series.missing else told


def _channels(names: tuple[str, ...], count: int, task: TaskSpec, source: str) -> list[int]:
    """The channels that are predicted: by their names, or all of them."""
    wanted = task.names
    if not wanted:
        return list(range(count))
    if set(wanted) <= set(names):
        return [names.index(name) for name in wanted]
    if not names and len(wanted) == count:
        return list(range(count))
    shown = f"only {shorten(names)}" if names else f"but {count} without a name"
    absent = shorten(name for name in wanted if name not in names)
    raise DataError(
        f"{source} has no channel {absent}, which the job predicts, {shown}: say which it is with data.targets, or "
        "name the channels in a header, or in an array `channels` of an NPZ file"
    )


def _names(channels: tuple[str, ...]) -> str:
    return f" ({shorten(channels)})" if channels else ""
