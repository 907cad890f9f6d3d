"""Shows how a data set is split over devices: each device's classes, labels, ranges or clusters."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator.console.live_view import BARS
from fleet_sim.datasets import DataSet
from fleet_sim.datasets.partition import RANGED, brief, groups_of, quantity_of

WORDS = {"classification": "classes", "multilabel": "labels", "tokens": "clusters", "reconstruction": "clusters"}
"""Display names of the groups of samples; strata of quantities are ranges."""


@dataclass(frozen=True, eq=False)
class DealtData:
    """Each device's number of samples, its counts per group, and a summary of its values.

    A sample with several labels counts for each of them. heading: the title of the summaries; empty if there are none.
    """

    samples: NDArray[np.int64]
    counts: NDArray[np.int64]
    names: tuple[str, ...]
    word: str
    heading: str = ""
    values: tuple[str, ...] = ()


def dealt_data(data: DataSet, parts: list[NDArray[np.int64]]) -> DealtData:
    """Return the contents of a split."""
    samples = np.array([len(part) for part in parts], np.int64)
    word = WORDS.get(data.kind, "ranges")
    if data.kind == "multilabel":
        counts = np.array([(data.y_train[part] > 0.5).sum(axis=0) for part in parts], np.int64)
        return DealtData(samples, counts, data.classes, word)
    groups = groups_of(data)
    each = [np.bincount(groups.of_sample[part], minlength=len(groups.names)) for part in parts]
    heading, summarise = _summary_of_values(data)
    values = tuple(summarise(part) if len(part) else "" for part in parts) if heading else ()
    return DealtData(samples, np.array(each, np.int64), groups.names, word, heading, values)


def _summary_of_values(data: DataSet) -> tuple[str, Callable[[NDArray[np.int64]], str]]:
    """Return a heading, and the function that summarises the values of a device's samples."""
    if data.kind in RANGED:
        found = quantity_of(data)
        name = data.names[0] if data.names else "target"
        return (name if data.kind == "regression" else f"{name}, mean of the horizon"), lambda part: _range(found[part])
    if data.kind == "reconstruction":
        return "values", lambda part: f"{data.x_train[part].mean():.3g} ± {data.x_train[part].std():.3g}"
    if data.kind == "tokens":
        return "tokens used", lambda part: str(len(np.unique(data.x_train[part])))
    return "", str


def _range(values: NDArray[np.float64]) -> str:
    low, high, middle = (brief(float(each)) for each in (values.min(), values.max(), np.median(values)))
    return f"{low} to {high}, median {middle}"


MAX_DEVICES = 24
"""With more devices than this, only the first are listed and all are summarised."""
MAX_NAMED = 10
MAX_CLASSES = 30
"""With more classes than this, their names are not listed."""
_GAP = 2


@dataclass(frozen=True)
class _Signs:
    """Characters that the terminal can display: eight bar heights, and one for an empty group."""

    bars: str
    nothing: str


_UTF, _ASCII = _Signs(BARS, "·"), _Signs("12345678", "-")


def draw(dealt: DealtData, console: Console) -> None:
    """Print the table, its legend, and a summary of all devices."""
    signs = _UTF if console.encoding.lower().startswith("utf") else _ASCII
    console.print(_table(dealt, signs, console.width), highlight=False)
    if len(dealt.samples) > MAX_DEVICES:
        console.print(f"and {len(dealt.samples) - MAX_DEVICES:,} more devices", style="dim", highlight=False)
    console.print()
    if len(dealt.names) <= MAX_CLASSES and dealt.names != tuple(map(str, range(len(dealt.names)))):
        legend = ", ".join(f"{at}={name}" for at, name in enumerate(dealt.names))
        console.print(f"{dealt.word}: {legend}", style="dim", highlight=False, markup=False)
    for line in summary(dealt):
        console.print(line, highlight=False)


def summary(dealt: DealtData) -> list[str]:
    """Summarise all devices in a few lines, and list those without samples."""
    samples, kinds = dealt.samples, (dealt.counts > 0).sum(axis=1)
    lines = [
        f"samples per device: {_count_range(samples)}",
        f"{dealt.word} per device: {_count_range(kinds)}",
    ]
    empty = [int(device) + 1 for device in np.flatnonzero(samples == 0)]
    if empty:
        named = ", ".join(map(str, empty[:MAX_NAMED]))
        rest = f" and {len(empty) - MAX_NAMED:,} more" if len(empty) > MAX_NAMED else ""
        have = "1 device has" if len(empty) == 1 else f"{len(empty):,} devices have"
        lines.append(f"{have} no samples: {named}{rest}")
    return lines


def _count_range(values: NDArray[np.int64]) -> str:
    return f"{values.min():,} to {values.max():,}, median {np.median(values):,.0f}"


def _table(dealt: DealtData, signs: _Signs, width: int) -> Table:
    counts, values = dealt.counts[:MAX_DEVICES], dealt.values[:MAX_DEVICES]
    groups = counts.shape[1]
    digits = max(len(str(counts.max())), len(str(groups - 1)))
    head = max(6, len(str(len(counts)))) + _GAP + max(7, len(f"{dealt.samples.max():,}")) + _GAP
    head += max((len(text) + _GAP for text in (dealt.heading, *values)), default=0) if dealt.heading else 0
    numbered = head + groups + _GAP + groups * (digits + 1) <= width
    together = 1 if numbered else -(-groups // max(1, width - head))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", collapse_padding=True)
    table.add_column("device", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column(_ruler(groups, together, dealt.word), no_wrap=True)
    if numbered:
        table.add_column(Text(" ".join(f"{at:>{digits}}" for at in range(groups))), no_wrap=True)
    if dealt.heading:
        table.add_column(dealt.heading, no_wrap=True)
    for device, row in enumerate(counts, 1):
        numbers = [" ".join(f"{count or signs.nothing:>{digits}}" for count in row.tolist())] if numbered else []
        shown = Text(bars(row, signs.bars, together), style="cyan")
        summary = [values[device - 1]] if dealt.heading else []
        has = int(dealt.samples[device - 1])
        table.add_row(str(device), f"{has:,}", shown, *numbers, *summary, style="" if has else "yellow")
    return table


def _ruler(groups: int, together: int, word: str) -> Text:
    """Return group numbers as a header for the bars: the last digit of each, or the range if several share a bar."""
    if together > 1:
        return Text(f"{word} 0 to {groups - 1}, {together} per bar")
    return Text("".join(str(at % 10) for at in range(groups)))


def bars(row: NDArray[np.int64], signs: str = BARS, together: int = 1) -> str:
    """Return a bar for each group or for several adjacent ones, relative to the device's largest group."""
    sums = np.add.reduceat(row, np.arange(0, len(row), together))
    highest = max(1, int(sums.max()))
    return "".join(signs[round(7 * int(count) / highest)] if count else " " for count in sums)


def write_csv(dealt: DealtData, path: Path) -> None:
    """Write a row per device: its samples, its counts per group, and the summary of its values."""
    summaries = dealt.values or [()] * len(dealt.samples)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "samples", *dealt.names, *([dealt.heading] if dealt.heading else [])])
        for at, (samples, row, words) in enumerate(zip(dealt.samples, dealt.counts, summaries, strict=True), 1):
            writer.writerow([f"device-{at}", int(samples), *row.tolist(), *([words] if dealt.heading else [])])
