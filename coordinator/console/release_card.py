"""A release on the screen: the card that came with it."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from coordinator.releases.file import ReleaseFile
    from sojourn.protocol.release import Card

MOST_CLASSES = 12


def summary(release: ReleaseFile) -> Table:
    """What who made it wants to see."""
    card = release.card
    return _table(
        {
            "release": f"{card.line} {card.version}",
            "graph": f"{len(release.graph):,} bytes, {card.encoding}",
            "accuracy": _accuracy(card),
            "classes": _classes(card),
            "checked": card.checked,
        }
    )


def whole(release: ReleaseFile) -> Table:
    """All that the card says."""
    card = release.card
    return _table(
        {
            "release": f"{card.line} {card.version}",
            "created": card.created,
            "graph": f"{len(release.graph):,} bytes, {card.encoding}",
            "digest": release.goods.graph.digest.hex(),
            "input": f"{card.input.dtype} {_shape(card)}",
            "output": f"logits of {len(card.classes)} classes: {_classes(card)}",
            "accuracy": _accuracy(card),
            "model": card.model,
            "job": card.job and f"{card.job}: {card.strategy}, {card.rounds} rounds, {card.devices} devices",
            "data": card.data,
            "started from": card.source,
            "licence of that": card.licence,
            "checked": card.checked,
            "probe": f"{card.probe.rows} rows, logits within {card.probe.atol:.2g}",
            "notes": card.notes,
        }
    )


def _table(fields: dict[str, str]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value:
            table.add_row(name, Text(value))
    return table


def _accuracy(card: Card) -> str:
    if isnan(card.accuracy):
        return "not measured: there were no samples"
    measured = f"{100 * card.accuracy:.2f} % on {card.tested:,} samples"
    if card.encoding != "int8":
        return measured
    points = 100 * card.accuracy_lost
    change = f"cost {points:.2f}" if points >= 0 else f"gained {-points:.2f}"
    return f"{measured}; int8 {change} points"


def _classes(card: Card) -> str:
    names = ", ".join(card.classes[:MOST_CLASSES])
    more = len(card.classes) - MOST_CLASSES
    return f"{names} and {more} more" if more > 0 else names


def _shape(card: Card) -> str:
    return " x ".join(str(size) for size in ("rows", *card.input.shape))
