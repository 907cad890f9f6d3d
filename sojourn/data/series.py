"""Time series: their order and gaps, and the overlapping windows cut from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sojourn.data.labels import shorten
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import TaskSpec

if TYPE_CHECKING:
    from sojourn.data.samples import Content


class Windows:
    """A lazy array of overlapping windows: row i is `length` steps from `starts[i]` on.

    Indexing works as on an array whose first axis is the samples, and returns an array. `np.asarray` copies all
    windows, which takes up to `length` times the memory of the series.
    """

    def __init__(
        self, steps: NDArray[Any], starts: NDArray[np.int64], length: int, shape: tuple[int, ...], dtype: DTypeLike
    ) -> None:
        """Create windows of `steps`, whose first axis is time; each row has this shape and type."""
        self.steps, self._starts, self._length = steps, starts, length
        self.shape = (len(starts), *shape)
        self.ndim = len(self.shape)
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._starts)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return the windows at an index, a slice, or an array of indices or booleans."""
        starts = np.asarray(self._starts[index])
        rows = self.steps[starts[..., np.newaxis] + np.arange(self._length)]
        return rows.reshape(*starts.shape, *self.shape[1:]).astype(self.dtype, copy=False)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all windows as one array."""
        del copy  # this is always a copy
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def astype(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return all windows as one array of this type."""
        return self[:].astype(dtype, copy=False)


def windows(
    steps: NDArray[Any], starts: NDArray[np.int64], length: int, shape: tuple[int, ...], dtype: DTypeLike
) -> NDArray[Any]:
    """Return `Windows` typed as an array: code that only indexes rows can use it as one."""
    return cast("NDArray[Any]", Windows(steps, starts, length, shape, dtype))


def window_starts(pieces: NDArray[np.int64], length: int, stride: int) -> NDArray[np.int64]:
    """Return the start of each window: every `stride` steps within a piece, never across two pieces.

    pieces: the start and the end of each stretch without a gap, a row for each.
    """
    counts = np.maximum(0, (pieces[:, 1] - pieces[:, 0] - length) // stride + 1)
    first = np.cumsum(counts) - counts  # the index of each piece's first window
    return np.asarray(np.repeat(pieces[:, 0] - first * stride, counts) + stride * np.arange(counts.sum()), np.int64)


GAP_RATIO = 1.5
"""A time step longer than this many median steps is a gap."""


@dataclass(frozen=True)
class Series:
    """The order of the rows of a content.

    pieces: the start and the end of each stretch without a gap, a row for each; machine: the index of its series in
    `machines`; gaps: the number of jumps in time; missing: the number of unusable rows; timed: whether rows have times.
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
        """The number of steps in the longest piece."""
        return int((self.pieces[:, 1] - self.pieces[:, 0]).max(initial=0))


class Timeline(NamedTuple):
    """The series of each row, as an index into `machines`, and its time if known."""

    machine: NDArray[np.int64]
    machines: tuple[str, ...]
    time: NDArray[np.float64] | None


class Cut(NamedTuple):
    """Windows cut from series, and the series of each."""

    x: NDArray[Any]
    y: NDArray[Any]
    machine: NDArray[np.int64]
    machines: tuple[str, ...]


def parse_time(cell: str) -> float:
    """Convert a number, or a date with or without a time, to seconds; raise ValueError for other text."""
    text = cell.strip()
    try:
        found = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
            found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ValueError(f"{text[:40]!r} is not a time") from None
    if not isfinite(found):
        raise ValueError(f"{text[:40]!r} is not a time")
    return found


def sort_by_time(content: Content, channels: tuple[str, ...], timeline: Timeline) -> Content:
    """Sort rows by machine and time, and find their gaps."""
    machine, machines, time = timeline
    order = np.argsort(machine, kind="stable") if time is None else np.lexsort((time, machine))
    machine, time, repeated = machine[order], None if time is None else time[order], 0
    if time is not None and len(time):
        again = np.r_[False, (np.diff(machine) == 0) & (np.diff(time) <= 0)]
        repeated = int(np.count_nonzero(again))
        order, machine, time = order[~again], machine[~again], time[~again]
    x = content.x if np.array_equal(order, np.arange(len(content.x))) else content.x[order]
    series = _series(x, machine, machines, time, channels)
    skipped = [*content.skipped, *([f"{repeated} rows with a repeated time"] if repeated else [])]
    return replace(
        content, x=x, label_index=content.label_index[order], skipped=(*skipped, *_series_notes(series)), series=series
    )


def as_series(content: Content) -> Content:
    """Read an array as series: (steps,), (steps, channels), or several of equal length as (series, steps, channels)."""
    x = content.x
    if x.ndim not in (1, 2, 3) or x.dtype.kind not in "buif":
        raise DataError(
            f"{content.source} has an array of shape {x.shape} and type {x.dtype}: a series must be numbers of the "
            "shape (steps,) or (steps, channels); several series have the shape (series, steps, channels)"
        )
    count, steps, channels = (1, len(x), prod(x.shape[1:])) if x.ndim < 3 else x.shape
    machine = np.repeat(np.arange(count), steps)
    rows = x.reshape(count * steps, channels)
    names = tuple(str(at) for at in range(count)) if x.ndim == 3 else ()
    series = _series(rows, machine, names, None, content.target_names)
    return replace(content, x=rows, skipped=(*content.skipped, *_series_notes(series)), series=series)


def forecast_windows(content: Content, wanted: InputSpec, task: TaskSpec) -> Cut:
    """Cut the windows of a forecast: the input steps, and the future steps of the predicted channels."""
    if task.window is None or content.series is None:
        raise DataError(f"{content.source}: the job sets no window for its forecast")
    steps, horizon, stride = task.window.steps, task.window.horizon, task.window.stride
    series, channels, source = content.series, content.x.shape[1], content.source
    if prod(wanted.shape) != steps * channels:
        raise DataError(
            f"{source} has series of {channels} channels{_names(series.channels)}, so {steps} steps have "
            f"{steps * channels} numbers, but the model expects the shape {wanted.shape}: exclude columns with "
            "data.ignore, or set the right file"
        )
    starts = window_starts(series.pieces, steps + horizon, stride)
    if not len(starts):
        raise DataError(
            f"{source}: its longest series without a gap has {series.longest:,} steps, but a window needs {steps:,} "
            f"input steps and {horizon:,} predicted steps; add data, or use a job with fewer steps"
        )
    places = _channels(series.channels, channels, task, source)
    values = content.x if places == list(range(channels)) else np.ascontiguousarray(content.x[:, places])
    shape = task.target.shape if task.target else (horizon, len(places))
    if prod(shape) != horizon * len(places):
        raise DataError(f"{source}: {horizon} steps of {len(places)} channels do not match the target shape {shape}")
    piece = np.searchsorted(series.pieces[:, 0], starts, side="right") - 1
    return Cut(
        windows(content.x, starts, steps, wanted.shape, content.x.dtype),
        windows(values, starts + steps, horizon, shape, np.float32),
        series.machine[piece],
        series.machines,
    )


def latest_windows(content: Content, wanted: InputSpec, steps: int) -> NDArray[np.generic]:
    """Return the last steps of each series; raise DataError if there are too few since its last gap."""
    found = content if content.series else as_series(content)
    series, channels = found.series, found.x.shape[1]
    if series is None or prod(wanted.shape) != steps * channels:
        raise DataError(f"{content.source} has {channels} channels, but the model expects the shape {wanted.shape}")
    ends = {int(machine): stop for machine, (_, stop) in zip(series.machine, series.pieces.tolist(), strict=True)}
    begins = {int(machine): start for machine, (start, _) in zip(series.machine, series.pieces.tolist(), strict=True)}
    short = next((machine for machine in ends if ends[machine] - begins[machine] < steps), None)
    if short is not None or not ends:
        found_steps = ends[short] - begins[short] if short is not None else 0
        raise DataError(f"{content.source}: {found_steps} steps since the last gap; the model needs {steps}")
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
    """Return where a row does not follow the previous one, and the number of jumps in time."""
    broken = np.r_[True, np.diff(machine) != 0]
    if time is None:
        return broken, 0
    gaps = 0
    for start, stop in pairwise([*np.flatnonzero(broken).tolist(), len(broken)]):
        steps = np.diff(time[start:stop])
        far = steps > GAP_RATIO * float(np.median(steps)) if len(steps) else np.zeros(0, np.bool_)
        broken[start + 1 : stop] |= far
        gaps += int(np.count_nonzero(far))
    return broken, gaps


def _series_notes(series: Series) -> list[str]:
    notes = [f"windows over {series.gaps:,} gaps in time"] if series.gaps else []
    return [*notes, f"windows over {series.missing:,} rows with missing values"] if series.missing else notes


def _channels(names: tuple[str, ...], count: int, task: TaskSpec, source: str) -> list[int]:
    """Return the predicted channels, by name, or all of them."""
    wanted = task.names
    if not wanted:
        return list(range(count))
    if set(wanted) <= set(names):
        return [names.index(name) for name in wanted]
    if not names and len(wanted) == count:
        return list(range(count))
    shown = f"only {shorten(names)}" if names else f"but {count} unnamed ones"
    absent = shorten(name for name in wanted if name not in names)
    raise DataError(
        f"{source} has no channel {absent}, which the job predicts, {shown}: set it with data.targets, or "
        "name the channels in a CSV header or in the array `channels` of an NPZ file"
    )


def _names(channels: tuple[str, ...]) -> str:
    return f" ({shorten(channels)})" if channels else ""
