"""*Releases*: model lines, rollouts with their progress and rules, devices, and the model card."""

from __future__ import annotations

from nicegui import ui

from coordinator.console.release_tables import card_fields, health_metric, health_pace, line_summary
from fleet_web.drawing.markup import moment
from fleet_web.elements import Cell, Column, Dropdown, Pager, Pairs, Row, TextTable, Words, address, link, search_field
from fleet_web.page_updates import follow
from fleet_web.sources.source import Source, in_address
from sojourn.errors import SojournError
from sojourn.protocol.release import BAD, DeviceView, LineView
from sojourn.text import clock_of

LINE_COLUMNS = (
    Column("line", "Model line"),
    Column("version", "Rollout of", number=True),
    Column("status", "Status"),
    Column("stage", "Stage"),
    Column("serves", "Fleet release"),
    Column("devices", "Devices"),
    Column("detail", "Detail"),
)
DEVICE_COLUMNS = (
    Column("device", "Device"),
    Column("stage", "Stage", number=True),
    Column("serves", "Serves"),
    Column("state", "State"),
    Column("pace", "p95"),
    Column("local", "Local data"),
    Column("predictions", "Predictions", number=True),
    Column("errors", "Errors", number=True),
    Column("detail", "Message"),
)
_TONES = {"done": "good", "serving": "good", "running": "accent", "paused": "warn", "halted": "bad",
          "rolling-back": "bad", "rolled-back": "warn", "away": "dim", "sent": "dim"}  # fmt: skip


def tone(word: str) -> str:
    """Return the CSS class for the state of a device or of a rollout."""
    return "bad" if word in BAD else _TONES.get(word, "")


def line_row(view: LineView, of: dict[str, str]) -> Row:
    """Return a model line as a row; `of` is the source's name in addresses."""
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
    """Describe the current stage and its share of the fleet."""
    share = f" ({100 * view.stages[view.stage - 1]:g} % of the fleet)" if 0 < view.stage <= len(view.stages) else ""
    return f"{view.stage} of {len(view.stages)}{share}"


def rule_pairs(view: LineView) -> list[tuple[str, str]]:
    """Describe the stages of a rollout and the rules that undo it."""
    pairs = [
        ("stages", ", ".join(f"{100 * share:g} %" for share in view.stages)),
        ("in progress", stage_text(view)),
        ("previous release", f"{view.line} {view.before}" if view.before else "nothing"),
    ]
    rules = view.plan.rules
    turns = [
        f"{moment(it.at)}: {view.line} {it.version} {it.status}{f', {it.detail}' if it.detail else ''}"
        for it in view.plan.turns
    ]
    return [
        *pairs,
        (
            "unhealthy devices allowed",
            f"{100 * rules.failures:g} % of a stage's devices; at least {rules.quorum} must report problems",
        ),
        ("latency allowed", f"95th percentile up to {rules.latency:g} times the previous release's"),
        ("accuracy loss allowed", f"{100 * rules.accuracy:g} points; for another main metric, {100 * rules.worse:g} %"),
        ("drift allowed", f"{100 * rules.drift:g} % of the distribution of predictions"),
        ("errors allowed", f"{rules.errors} per device"),
        ("each stage", f"healthy for {clock_of(rules.soak)}; waits {clock_of(rules.timeout)} for silent devices"),
        ("unhealthy stage", "is rolled back immediately" if view.plan.undo else "pauses the rollout"),
        *(("history", text) for text in turns),
    ]


def device_row(it: DeviceView, of: dict[str, str]) -> Row:
    """Return a device of a model line as a row."""
    health = it.health
    return Row(
        it.device,
        (
            Cell(it.device, address("device", it.device, **of)),
            Cell(str(it.stage)),
            Cell(str(it.version) if it.version else "nothing"),
            Cell(it.state, tone=tone(it.state)),
            Cell((health and health_pace(health)) or "-"),
            Cell((health and health_metric(health)) or "-"),
            Cell(f"{health.predictions:,}" if health else "-"),
            Cell(f"{health.errors:,}" if health else "-", tone="bad" if health and health.errors else ""),
            Cell(it.detail or "-"),
        ),
    )


async def releases_page(source: Source) -> None:
    """Show all model lines of a source."""
    table = TextTable("Model lines", LINE_COLUMNS, empty="No releases yet. Create one with `sojourn release`.")

    async def refresh() -> None:
        of = in_address(source)
        table.show([line_row(it, of) for it in await source.lines()])

    follow(source, ("releases",), refresh)


class ModelLineView:
    """The state of one open page of a model line."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._line: LineView | None = None
        self._search = self._state = ""
        self._version: int | None = None
        self._summary = Words("p", "", role="status").classes("lead")
        Words("h2", "Stages and rules")
        self._rules = Pairs()
        Words("h2", "Devices")
        with ui.element("form").classes("controls").props('role="search" onsubmit="return false"'):
            search_field(self._look_for)
            self._states = Dropdown("State", [("", "all states")], self._choose)
        self._table = TextTable(
            "Devices, unhealthy ones first", DEVICE_COLUMNS, empty="No devices have received it yet."
        )
        self._pager = Pager(self._show_devices)
        Words("h2", "Card")
        self._card = Pairs()
        follow(source, ("releases", "fleet"), self.refresh)

    async def refresh(self) -> None:
        """Update the page."""
        line = self._line = await self._source.line(self._name)
        self._summary.text = line_summary(line)
        self._rules.show(rule_pairs(line))
        self._states.set([("", "all states"), *((state, f"{state} ({count})") for state, count in line.counts.items())])
        self._show_devices()
        if self._version != line.version:
            await self._show_card(line)

    async def _show_card(self, line: LineView) -> None:
        try:
            card, graph = await self._source.card(line.line, line.version)
        except SojournError as error:
            self._card.show([("card", str(error))])
            return
        self._version = line.version
        self._card.show([(word, text) for word, text in card_fields(card, graph).items() if text])

    def _look_for(self, text: str) -> None:
        self._search, self._pager.page = text.lower().strip(), 0
        self._show_devices()

    def _choose(self, state: str) -> None:
        self._state, self._pager.page = state, 0
        self._show_devices()

    def _show_devices(self) -> None:
        if self._line is None:
            return
        found = [
            it
            for it in self._line.devices
            if self._state in ("", it.state) and self._search in f"{it.device} {it.state} {it.detail}".lower()
        ]
        of = in_address(self._source)
        self._table.show([device_row(it, of) for it in self._pager.cut(found)])


async def release_page(source: Source, name: str) -> None:
    """Show one model line of a source."""
    link("All model lines", "releases", **in_address(source))
    ModelLineView(source, name)
