"""*Releases*: model lines, how their rollouts go, device by device, and the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from coordinator.console.release_card import card_fields
from coordinator.console.rollout_tables import summary
from fleet_web.controls import Dropdown, Pager, search
from fleet_web.pages.release_rows import DEVICE_COLUMNS, LINE_COLUMNS, device_row, line_row, rule_pairs
from fleet_web.pairs import Pairs
from fleet_web.refreshing import follow
from fleet_web.source import in_address
from fleet_web.table import TextTable
from fleet_web.words import Words, link
from sojourn.errors import SojournError

if TYPE_CHECKING:
    from fleet_web.source import Source
    from sojourn.protocol.release import LineView


async def releases_page(source: Source) -> None:
    """All model lines of a source."""
    table = TextTable("Model lines", LINE_COLUMNS, empty="No release was brought to the fleet yet (`sojourn release`).")

    async def refresh() -> None:
        of = in_address(source)
        table.show([line_row(it, of) for it in await source.lines()])

    follow(source, ("releases",), refresh)


class ModelLineView:
    """What one open page shows of a model line."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._line: LineView | None = None
        self._search = self._state = ""
        self._version: int | None = None
        self._summary = Words("p", "", role="status").classes("lead")
        self.acts = ui.element("div").classes("acts")
        Words("h2", "Stages and rules")
        self._rules = Pairs()
        Words("h2", "Devices")
        with ui.element("form").classes("controls").props('role="search" onsubmit="return false"'):
            search("Search", self._look_for)
            self._states = Dropdown("State", [("", "all states")], self._choose)
        self._table = TextTable(
            "Devices, those that are not well first", DEVICE_COLUMNS, empty="It has reached none yet."
        )
        self._pager = Pager(self._show_devices)
        Words("h2", "Card")
        self._card = Pairs()
        follow(source, ("releases", "fleet"), self.refresh)

    async def refresh(self) -> None:
        """Show the line as it is now."""
        line = self._line = await self._source.line(self._name)
        text = summary(line)
        if self._summary.text != text:
            self._summary.text = text
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


async def release_page(source: Source, name: str) -> ModelLineView:
    """One model line of a source."""
    link("All model lines", "releases", **in_address(source))
    return ModelLineView(source, name)
