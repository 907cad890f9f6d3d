"""A split of a data set for people: devices x classes."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from coordinator.console.watching import BARS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from rich.console import Console

    from fleet_sim.datasets import DataSet

MOST_DEVICES = 24
"""With more of them, the first are shown and all are summarised."""
MOST_NAMED = 10
MOST_CLASSES = 30
"""More classes than this are not listed by name."""
_GAP = 2


@dataclass(frozen=True)
class _Signs:
    """What a terminal can show: eight bars, and a sign for nothing."""

    bars: str
    nothing: str


_UTF, _ASCII = _Signs(BARS, "·"), _Signs("12345678", "-")


def counts_of(data: DataSet, parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """How many samples of each class (column) each device (row) has."""
    return np.array([np.bincount(data.y_train[part], minlength=len(data.classes)) for part in parts], np.int64)


def draw(data: DataSet, counts: NDArray[np.int64], console: Console) -> None:
    """The table, what the columns mean, and what all devices have in common."""
    shown = counts[:MOST_DEVICES]
    signs = _UTF if console.encoding.lower().startswith("utf") else _ASCII
    console.print(_table(shown, signs, console.width), highlight=False)
    if len(counts) > len(shown):
        console.print(f"and {len(counts) - len(shown):,} devices more", style="dim", highlight=False)
    console.print()
    if len(data.classes) <= MOST_CLASSES and data.classes != tuple(map(str, range(len(data.classes)))):
        legend = ", ".join(f"{at}={name}" for at, name in enumerate(data.classes))
        console.print(f"classes: {legend}", style="dim", highlight=False, markup=False)
    for line in summary(counts):
        console.print(line, highlight=False)


def summary(counts: NDArray[np.int64]) -> list[str]:
    """All devices in a few lines; those without samples by their numbers."""
    samples, kinds = counts.sum(axis=1), (counts > 0).sum(axis=1)
    lines = [f"samples of a device: {_range(samples)}", f"classes of a device: {_range(kinds)}"]
    empty = [int(device) + 1 for device in np.flatnonzero(samples == 0)]
    if empty:
        named = ", ".join(map(str, empty[:MOST_NAMED]))
        rest = f" and {len(empty) - MOST_NAMED:,} more" if len(empty) > MOST_NAMED else ""
        have = "1 device has" if len(empty) == 1 else f"{len(empty):,} devices have"
        lines.append(f"{have} no samples: {named}{rest}")
    return lines


def _range(values: NDArray[np.int64]) -> str:
    return f"{values.min():,} to {values.max():,}, median {np.median(values):,.0f}"


def _table(counts: NDArray[np.int64], signs: _Signs, width: int) -> Table:
    classes = counts.shape[1]
    digits = max(len(str(counts.max())), len(str(classes - 1)))
    head = max(6, len(str(len(counts)))) + _GAP + max(7, len(f"{counts.sum(axis=1).max():,}")) + _GAP
    numbered = head + classes + _GAP + classes * (digits + 1) <= width
    together = 1 if numbered else -(-classes // max(1, width - head))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", collapse_padding=True)
    table.add_column("device", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column(_ruler(classes, together), no_wrap=True)
    if numbered:
        table.add_column(Text(" ".join(f"{at:>{digits}}" for at in range(classes))), no_wrap=True)
    for device, row in enumerate(counts, 1):
        numbers = [" ".join(f"{count or signs.nothing:>{digits}}" for count in row.tolist())] if numbered else []
        shown = Text(bars(row, signs.bars, together), style="cyan")
        table.add_row(str(device), f"{row.sum():,}", shown, *numbers, style="" if row.any() else "yellow")
    return table


def _ruler(classes: int, together: int) -> Text:
    """Class numbers over their bars: the last digit of each, or the range where several share a bar."""
    if together > 1:
        return Text(f"classes 0 to {classes - 1}, {together} to a bar")
    return Text("".join(str(at % 10) for at in range(classes)))


def bars(row: NDArray[np.int64], signs: str = BARS, together: int = 1) -> str:
    """One bar for each class, or for so many neighbours; the device's largest is full, an empty class blank."""
    sums = np.add.reduceat(row, np.arange(0, len(row), together))
    most = max(1, int(sums.max()))
    return "".join(signs[round(7 * int(count) / most)] if count else " " for count in sums)


def write_csv(data: DataSet, counts: NDArray[np.int64], path: Path) -> None:
    """One line for each device: its samples, and how many of each class."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "samples", *data.classes])
        writer.writerows([f"device-{at}", int(row.sum()), *row.tolist()] for at, row in enumerate(counts, 1))
