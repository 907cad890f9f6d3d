"""A release on the screen: the card that came with it."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from msgspec import UNSET
from rich.table import Table
from rich.text import Text

from sojourn.protocol.figure_names import MAIN, called, figure_text

if TYPE_CHECKING:
    from coordinator.releases.file import ReleaseFile
    from sojourn.protocol.release import Card, Parcel

MOST_CLASSES = 12


def summary(release: ReleaseFile) -> Table:
    """What who made it wants to see."""
    card = release.card
    return _table(
        {
            "release": f"{card.line} {card.version}",
            "graph": f"{len(release.graph):,} bytes, {card.encoding}",
            **_task(card),
            "classes": _classes(card),
            "checked": card.checked,
        }
    )


def whole(release: ReleaseFile) -> Table:
    """All that the card says."""
    return _table(card_fields(release.card, release.goods.graph))


def card_fields(card: Card, graph: Parcel) -> dict[str, str]:
    """All that a card says, by what it is about; empty where it says nothing."""
    return {
        "release": f"{card.line} {card.version}",
        "created": card.created,
        "graph": f"{graph.size:,} bytes, {card.encoding}",
        "digest": graph.digest.hex(),
        "input": f"{card.input.dtype} {_shape(card)}",
        "output": _output(card),
        **_task(card),
        "model": card.model,
        "job": card.job and f"{card.job}: {card.strategy}, {card.rounds} rounds, {card.devices} devices",
        "data": card.data,
        "started from": card.source,
        "licence of that": card.licence,
        "checked": card.checked,
        "probe": f"{card.probe.rows} rows, {card.learns.answers} within {card.probe.atol:.2g}",
        "notes": card.notes,
    }


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


def _task(card: Card) -> dict[str, str]:
    """How good it is, in the terms of its task."""
    figures = dict(card.figures or {})
    if card.learns.kind == "classification":
        more = ", ".join(_told(name, each) for name, each in figures.items() if name != "accuracy")
        return {"accuracy": _accuracy(card), "and": more}
    found = {"task": card.learns.kind, "loss": card.learns.loss}
    told = ", ".join(_told(name, each) for name, each in figures.items())
    cost = "" if card.worse is UNSET else f"; int8 {_change(card.worse)} of {called(MAIN[card.learns.kind])}"
    found["figures"] = f"{told} on {card.tested:,} samples{cost}" if told else "not measured: there were no samples"
    if rule := card.anomaly:
        found["anomalies"] = (
            f"scores above what {100 * rule.quantile:g} % of a device's own samples stay below; on a device without "
            f"any: above {rule.threshold:.4g}, which {rule.samples:,} exemplars say"
        )
    return found


def _told(name: str, figure: float) -> str:
    return f"{called(name)} {figure_text(name, figure)}"


def _change(worse: float) -> str:
    return f"cost {100 * worse:.1f} %" if worse >= 0 else f"gained {-100 * worse:.1f} %"


def _output(card: Card) -> str:
    task = card.learns
    if task.kind == "classification":
        return f"logits of {len(card.classes)} classes: {_classes(card)}"
    shape = " x ".join(str(size) for size in ("rows", *task.output))
    names = ", ".join(task.names[:MOST_CLASSES]) or _classes(card)
    score = ", and a score for each row" if task.kind == "reconstruction" else ""
    return f"float32 {shape}{f': {names}' if names else ''}{score}"


def _classes(card: Card) -> str:
    names = ", ".join(card.classes[:MOST_CLASSES])
    more = len(card.classes) - MOST_CLASSES
    return f"{names} and {more} more" if more > 0 else names


def _shape(card: Card) -> str:
    return " x ".join(str(size) for size in ("rows", *card.input.shape))
