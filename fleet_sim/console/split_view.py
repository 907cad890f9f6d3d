"""A split of a data set for people: devices x classes, or whatever stands for them."""

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

    from fleet_sim.console.dealt_data import DealtData

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


def draw(dealt: DealtData, console: Console) -> None:
    """The table, what the columns mean, and what all devices have in common."""
    signs = _UTF if console.encoding.lower().startswith("utf") else _ASCII
    console.print(_table(dealt, signs, console.width), highlight=False)
    if len(dealt.samples) > MOST_DEVICES:
        console.print(f"and {len(dealt.samples) - MOST_DEVICES:,} devices more", style="dim", highlight=False)
    console.print()
    if len(dealt.names) <= MOST_CLASSES and dealt.names != tuple(map(str, range(len(dealt.names)))):
        legend = ", ".join(f"{at}={name}" for at, name in enumerate(dealt.names))
        console.print(f"{dealt.word}: {legend}", style="dim", highlight=False, markup=False)
    for line in summary(dealt):
        console.print(line, highlight=False)


def summary(dealt: DealtData) -> list[str]:
    """All devices in a few lines; those without samples by their numbers."""
    samples, kinds = dealt.samples, (dealt.counts > 0).sum(axis=1)
    lines = [f"samples of a device: {_range(samples)}", f"{dealt.word} of a device: {_range(kinds)}"]
    empty = [int(device) + 1 for device in np.flatnonzero(samples == 0)]
    if empty:
        named = ", ".join(map(str, empty[:MOST_NAMED]))
        rest = f" and {len(empty) - MOST_NAMED:,} more" if len(empty) > MOST_NAMED else ""
        have = "1 device has" if len(empty) == 1 else f"{len(empty):,} devices have"
        lines.append(f"{have} no samples: {named}{rest}")
    return lines


def _range(values: NDArray[np.int64]) -> str:
    return f"{values.min():,} to {values.max():,}, median {np.median(values):,.0f}"


def _table(dealt: DealtData, signs: _Signs, width: int) -> Table:
    counts, values = dealt.counts[:MOST_DEVICES], dealt.values[:MOST_DEVICES]
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
        said = [values[device - 1]] if dealt.heading else []
        has = int(dealt.samples[device - 1])
        table.add_row(str(device), f"{has:,}", shown, *numbers, *said, style="" if has else "yellow")
    return table


def _ruler(groups: int, together: int, word: str) -> Text:
    """Numbers of groups over their bars: the last digit of each, or the range where several share a bar."""
    if together > 1:
        return Text(f"{word} 0 to {groups - 1}, {together} to a bar")
    return Text("".join(str(at % 10) for at in range(groups)))


def bars(row: NDArray[np.int64], signs: str = BARS, together: int = 1) -> str:
    """One bar for each group, or for so many neighbours; the device's largest is full, an empty group blank."""
    sums = np.add.reduceat(row, np.arange(0, len(row), together))
    most = max(1, int(sums.max()))
    return "".join(signs[round(7 * int(count) / most)] if count else " " for count in sums)


def write_csv(dealt: DealtData, path: Path) -> None:
    """One line for each device: its samples, how many of each group, and what is said of its values."""
    said = dealt.values or [()] * len(dealt.samples)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["device", "samples", *dealt.names, *([dealt.heading] if dealt.heading else [])])
        for at, (samples, row, words) in enumerate(zip(dealt.samples, dealt.counts, said, strict=True), 1):
            writer.writerow([f"device-{at}", int(samples), *row.tolist(), *([words] if dealt.heading else [])])
