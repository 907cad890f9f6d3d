"""Model lines and their devices as rows; a rollout's rules in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.console.rollout_tables import health_figure, health_pace
from fleet_web.table import Cell, Column, Row
from fleet_web.times import moment
from fleet_web.words import address
from sojourn.figures import clock_of
from sojourn.protocol.release import BAD

if TYPE_CHECKING:
    from sojourn.protocol.release import DeviceView, LineView

LINE_COLUMNS = (
    Column("line", "Model line"),
    Column("version", "Rollout of", number=True),
    Column("status", "Status"),
    Column("stage", "Stage"),
    Column("serves", "The fleet serves"),
    Column("devices", "Devices"),
    Column("detail", "Detail"),
)
DEVICE_COLUMNS = (
    Column("device", "Device"),
    Column("stage", "Stage", number=True),
    Column("serves", "Serves"),
    Column("state", "State"),
    Column("pace", "p95"),
    Column("figure", "Own data"),
    Column("predictions", "Predictions", number=True),
    Column("errors", "Errors", number=True),
    Column("detail", "What it said"),
)
_TONES = {"done": "good", "serving": "good", "running": "accent", "paused": "warn", "halted": "bad",
          "rolling-back": "bad", "rolled-back": "warn", "away": "dim", "told": "dim"}  # fmt: skip


def tone(word: str) -> str:
    """Whether the state of a device or of a rollout is good or bad news."""
    return "bad" if word in BAD else _TONES.get(word, "")


def line_row(view: LineView, of: dict[str, str]) -> Row:
    """A model line in a row; `of` names the source in addresses."""
    return Row(
        view.line,
        (
            Cell(view.line, address("release", view.line, **of)),
            Cell(str(view.version)),
            Cell(view.status, tone=tone(view.status)),
            Cell(stage_text(view)),
            Cell(f"{view.line} {view.serves}" if view.serves else "nothing"),
            Cell(", ".join(f"{count} {state}" for state, count in sorted(view.counts.items()))),
            Cell(view.detail or "-"),
        ),
    )


def stage_text(view: LineView) -> str:
    """Which stage is under way, and how much of the fleet that is."""
    share = f" ({100 * view.stages[view.stage - 1]:g} % of the fleet)" if 0 < view.stage <= len(view.stages) else ""
    return f"{view.stage} of {len(view.stages)}{share}"


def rule_pairs(view: LineView) -> list[tuple[str, str]]:
    """The stages of a rollout and the rules by which it turns back, in words."""
    pairs = [
        ("stages", ", ".join(f"{100 * share:g} %" for share in view.stages)),
        ("under way", stage_text(view)),
        ("returns to", f"{view.line} {view.before}" if view.before else "nothing"),
    ]
    if not view.plan:
        return [*pairs, ("rules", "not told: the coordinator is of a version before 0.9.0")]
    rules = view.plan.rules
    turns = [
        f"{moment(it.at)}: {view.line} {it.version} {it.status}{f', {it.detail}' if it.detail else ''}"
        for it in view.plan.turns
    ]
    return [
        *pairs,
        ("may be unwell", f"{100 * rules.failures:g} % of a stage's devices; {rules.company} must complain together"),
        ("may be slower", f"the 95th percentile {rules.latency:g} times as long as before"),
        ("may be less accurate", f"by {100 * rules.accuracy:g} points; another main figure by {100 * rules.worst:g} %"),
        ("may drift", f"{100 * rules.drift:g} % of the mix of predictions"),
        ("may report", f"{rules.errors} errors on one device"),
        ("each stage", f"well for {clock_of(rules.soak)}; waits {clock_of(rules.patience)} for silent devices"),
        ("an ill stage", "is undone at once" if view.plan.undo else "halts the rollout"),
        *(("turned", text) for text in turns),
    ]


def device_row(it: DeviceView, of: dict[str, str]) -> Row:
    """A device of a line in a row."""
    health = it.health
    return Row(
        it.device,
        (
            Cell(it.device, address("device", it.device, **of)),
            Cell(str(it.stage)),
            Cell(str(it.version) if it.version else "nothing"),
            Cell(it.state, tone=tone(it.state)),
            Cell((health and health_pace(health)) or "-"),
            Cell((health and health_figure(health)) or "-"),
            Cell(f"{health.predictions:,}" if health else "-"),
            Cell(f"{health.errors:,}" if health else "-", tone="bad" if health and health.errors else ""),
            Cell(it.detail or "-"),
        ),
    )
