"""Releases and their rollouts on a terminal."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinator.console.fleet_tables import moment
from sojourn.protocol.figure_names import called, figure_text, worsening
from sojourn.protocol.release import BAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sojourn.protocol.release import DeviceView, Health, LineView

_COLOURS = {"done": "green", "serving": "green", "running": "cyan", "paused": "yellow", "halted": "red",
            "rolling-back": "red", "rolled-back": "yellow", "away": "dim", "told": "dim"}  # fmt: skip


def summary(view: LineView) -> str:
    """One line about a rollout."""
    share = f"{100 * view.stages[view.stage - 1]:g} % of the fleet" if view.stage else "no device is here yet"
    stage = f"stage {view.stage} of {len(view.stages)} ({share})" if view.status in ("running", "paused") else ""
    counts = ", ".join(f"{count} {state}" for state, count in sorted(view.counts.items()))
    words = [f"{view.line} {view.version} is {view.status}", stage, counts, view.detail]
    return "; ".join(word for word in words if word)


def line_table(views: Sequence[LineView]) -> Table:
    """All lines."""
    table = _table("line", "rollout of", "", "stage", "fleet serves", "devices")
    for view in views:
        serves = f"{view.line} {view.serves}" if view.serves else "nothing"
        counts = ", ".join(f"{count} {state}" for state, count in sorted(view.counts.items()))
        stage = f"{view.stage} of {len(view.stages)}"
        table.add_row(
            escape(view.line), str(view.version), _coloured(view.status), stage, escape(serves), escape(counts)
        )
    return table


def device_table(view: LineView) -> Group:
    """The devices of a line, those that are not well first; below them what they said, which may take a few lines."""
    table = _table("device", "stage", "serves", "", "p95", _measure(view), "predictions", "errors")
    for each in view.devices:
        table.add_row(*_row(each))
    if (more := sum(view.counts.values()) - len(view.devices)) > 0:
        table.add_row(f"and {more} more", *[""] * 7)
    return Group(table, *(Text(f"{each.device}: {each.detail}") for each in view.devices if each.detail))


def plan_lines(view: LineView) -> list[str]:
    """By which rules a rollout goes, and when the line's rollouts turned, a line each."""
    if not view.plan:
        return []
    rules = view.plan.rules
    limits = (
        f"turns back when {rules.company} devices complain: more than {rules.latency:g} times as slow, "
        f"{100 * rules.accuracy:g} points less accurate, a drift above {100 * rules.drift:g} %, "
        f"more than {rules.errors} errors"
    )
    turns = view.plan.turns
    return [limits, *(f"{moment(it.at)} {view.line} {it.version}: {it.status}{_why(it.detail)}" for it in turns)]


def _why(detail: str) -> str:
    return f", {detail}" if detail else ""


def _row(each: DeviceView) -> list[str]:
    health = each.health
    version = str(each.version) if each.version else "nothing"
    row = [escape(each.device), str(each.stage), version, _coloured(each.state)]
    if health is None:
        return [*row, "", "", "", ""]
    return [*row, health_pace(health), health_figure(health), str(health.predictions), str(health.errors)]


def _measure(view: LineView) -> str:
    """The figure by which the devices of a line compare its versions."""
    named = {each.health.task.measure for each in view.devices if each.health and each.health.task}
    return called(named.pop()) if len(named) == 1 else "figure" if named else "accuracy"


def health_figure(health: Health) -> str:
    """The main figure on a device's own data, and how it has changed."""
    if task := health.task:
        change = worsening(task.measure, task.figure, task.before)
        text = "" if isnan(task.figure) else figure_text(task.measure, task.figure)
        return f"{text} ({100 * change:+.1f} % worse)" if text and change > 0 else text
    text = "" if isnan(health.accuracy) else f"{100 * health.accuracy:.1f} %"
    if text and not isnan(health.accuracy_before):
        text += f" ({100 * (health.accuracy - health.accuracy_before):+.1f})"
    return text


def health_pace(health: Health) -> str:
    """How long predictions take, in use or else on trial, and how many times as long as before."""
    now = health.live or health.pace
    before = health.live_before if health.live else health.pace_before
    if now is None:
        return ""
    times = f" ({now.p95 / before.p95:.1f} x)" if before and before.p95 else ""
    return f"{now.p95 / 1000:.2f} ms{times}"


def _coloured(word: str) -> str:
    colour = "red" if word in BAD else _COLOURS.get(word)
    return f"[{colour}]{word}[/]" if colour else escape(word)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for at, column in enumerate(columns):
        # A name that is too long for the terminal goes on in the next line; figures stay whole.
        table.add_column(column, no_wrap=bool(at) and column != "devices", overflow="fold")
    return table
