"""Releases and rollouts as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinator.console.dates import moment
from coordinator.console.fleet_tables import pairs
from coordinator.releases.file import ReleaseFile
from sojourn.protocol.metric_names import MAIN, called, metric_text, worsening
from sojourn.protocol.release import BAD, BlobRef, Card, DeviceView, Health, LineView
from sojourn.tables import plain_table

MAX_CLASSES = 12


def summary(release: ReleaseFile) -> Table:
    """Return a summary for the operator who made the release."""
    card = release.card
    fields = {
        "release": f"{card.line} {card.version}",
        "graph": f"{len(release.graph):,} bytes, {card.encoding}",
        **_task(card),
        "classes": _classes(card),
        "checked": card.checked,
    }
    return pairs((name, value) for name, value in fields.items() if value)


def whole(release: ReleaseFile) -> Table:
    """Return all fields of the card as a table."""
    fields = card_fields(release.card, release.goods.graph)
    return pairs((name, value) for name, value in fields.items() if value)


def card_fields(card: Card, graph: BlobRef) -> dict[str, str]:
    """Return all fields of a card by name; empty if the card does not contain them."""
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
        "its licence": card.licence,
        "checked": card.checked,
        "probe": f"{card.probe.rows} rows, {card.learns.answers} within {card.probe.atol:.2g}",
        "notes": card.notes,
    }


def _accuracy(card: Card) -> str:
    if isnan(card.accuracy):
        return "not measured: no samples were given"
    measured = f"{100 * card.accuracy:.2f} % on {card.tested:,} samples"
    if card.encoding != "int8":
        return measured
    points = 100 * card.accuracy_lost
    change = f"cost {points:.2f}" if points >= 0 else f"gained {-points:.2f}"
    return f"{measured}; int8 {change} points"


def _task(card: Card) -> dict[str, str]:
    """Return the task's metrics and rules."""
    metrics = dict(card.metrics)
    if card.learns.kind == "classification":
        more = ", ".join(_named_metric(name, each) for name, each in metrics.items() if name != "accuracy")
        return {"accuracy": _accuracy(card), "and": more}
    found = {"task": card.learns.kind, "loss": card.learns.loss}
    listed = ", ".join(_named_metric(name, each) for name, each in metrics.items())
    cost = "" if isnan(card.worse) else f"; int8 {_change(card.worse)} of {called(MAIN[card.learns.kind])}"
    found["metrics"] = f"{listed} on {card.tested:,} samples{cost}" if listed else "not measured: no samples were given"
    if rule := card.anomaly:
        found["anomalies"] = (
            f"scores above those of {100 * rule.quantile:g} % of a device's own samples; on a device without samples: "
            f"above {rule.threshold:.4g}, from {rule.samples:,} exemplars"
        )
    return found


def _named_metric(name: str, metric: float) -> str:
    return f"{called(name)} {metric_text(name, metric)}"


def _change(worse: float) -> str:
    return f"cost {100 * worse:.1f} %" if worse >= 0 else f"gained {-100 * worse:.1f} %"


def _output(card: Card) -> str:
    task = card.learns
    if task.kind == "classification":
        return f"logits of {len(card.classes)} classes: {_classes(card)}"
    shape = " x ".join(str(size) for size in ("rows", *task.output))
    names = ", ".join(task.names[:MAX_CLASSES]) or _classes(card)
    score = ", and a score for each row" if task.kind == "reconstruction" else ""
    return f"float32 {shape}{f': {names}' if names else ''}{score}"


def _classes(card: Card) -> str:
    names = ", ".join(card.classes[:MAX_CLASSES])
    more = len(card.classes) - MAX_CLASSES
    return f"{names} and {more} more" if more > 0 else names


def _shape(card: Card) -> str:
    return " x ".join(str(size) for size in ("rows", *card.input.shape))


_COLOURS = {"done": "green", "serving": "green", "running": "cyan", "paused": "yellow", "halted": "red",
            "rolling-back": "red", "rolled-back": "yellow", "away": "dim", "sent": "dim"}  # fmt: skip


def line_summary(view: LineView) -> str:
    """Describe a rollout in one line."""
    share = f"{100 * view.stages[view.stage - 1]:g} % of the fleet" if view.stage else "no device is online yet"
    stage = f"stage {view.stage} of {len(view.stages)} ({share})" if view.status in ("running", "paused") else ""
    words = [f"{view.line} {view.version} is {view.status}", stage, _counts(view), view.detail]
    return "; ".join(word for word in words if word)


def line_table(views: Sequence[LineView]) -> Table:
    """Return a table of all lines."""
    table = _unwrapped_table("line", "rollout of", "", "stage", "fleet serves", "devices")
    for view in views:
        serves = f"{view.line} {view.serves}" if view.serves else "nothing"
        stage = f"{view.stage} of {len(view.stages)}"
        line, counts = escape(view.line), escape(_counts(view))
        table.add_row(line, str(view.version), _coloured(view.status), stage, escape(serves), counts)
    return table


def _counts(view: LineView) -> str:
    """Return how many devices are in each state."""
    return ", ".join(f"{count} {state}" for state, count in sorted(view.counts.items()))


def device_table(view: LineView) -> Group:
    """Return a table of a line's devices, unhealthy ones first, followed by the details that they reported."""
    table = _unwrapped_table("device", "stage", "serves", "", "p95", _measure(view), "predictions", "errors")
    for each in view.devices:
        table.add_row(*_row(each))
    if (more := sum(view.counts.values()) - len(view.devices)) > 0:
        table.add_row(f"and {more} more", *[""] * 7)
    return Group(table, *(Text(f"{each.device}: {each.detail}") for each in view.devices if each.detail))


def plan_lines(view: LineView) -> list[str]:
    """Describe a rollout's rules, and the status changes of the line's rollouts, a line each."""
    if not view.plan:
        return []
    rules = view.plan.rules
    limits = (
        f"rolls back when {rules.quorum} devices complain: more than {rules.latency:g} times as slow, "
        f"{100 * rules.accuracy:g} points less accurate, a drift above {100 * rules.drift:g} %, "
        f"more than {rules.errors} errors"
    )
    turns = view.plan.turns
    return [
        limits,
        *(f"{moment(it.at)} {view.line} {it.version}: {it.status}{it.detail and f', {it.detail}'}" for it in turns),
    ]


def _row(each: DeviceView) -> list[str]:
    health = each.health
    version = str(each.version) if each.version else "nothing"
    row = [escape(each.device), str(each.stage), version, _coloured(each.state)]
    if health is None:
        return [*row, "", "", "", ""]
    return [*row, health_pace(health), health_metric(health), str(health.predictions), str(health.errors)]


def _measure(view: LineView) -> str:
    """Return the metric by which the devices of a line compare its versions."""
    named = {each.health.task.measure for each in view.devices if each.health and each.health.task}
    return called(named.pop()) if len(named) == 1 else "metric" if named else "accuracy"


def health_metric(health: Health) -> str:
    """Return the main metric on a device's own data, and its change."""
    if task := health.task:
        change = worsening(task.measure, task.metric, task.before)
        text = "" if isnan(task.metric) else metric_text(task.measure, task.metric)
        return f"{text} ({100 * change:+.1f} % worse)" if text and change > 0 else text
    text = "" if isnan(health.accuracy) else f"{100 * health.accuracy:.1f} %"
    if text and not isnan(health.accuracy_before):
        text += f" ({100 * (health.accuracy - health.accuracy_before):+.1f})"
    return text


def health_pace(health: Health) -> str:
    """Return the prediction time, in use or otherwise on trial, and its ratio to the previous release."""
    now = health.live or health.pace
    before = health.live_before if health.live else health.pace_before
    if now is None:
        return ""
    times = f" ({now.p95 / before.p95:.1f} x)" if before and before.p95 else ""
    return f"{now.p95 / 1000:.2f} ms{times}"


def _coloured(word: str) -> str:
    colour = "red" if word in BAD else _COLOURS.get(word)
    return f"[{colour}]{word}[/]" if colour else escape(word)


def _unwrapped_table(*columns: str) -> Table:
    table = plain_table(*columns)
    for column in table.columns[1:]:
        column.no_wrap = column.header != "devices"  # do not break numbers
    return table
