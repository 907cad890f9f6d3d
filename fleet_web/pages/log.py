"""*Log*: what happened, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from fleet_web.controls import Dropdown, Pager, search
from fleet_web.pages.happenings import KINDS, LOG_COLUMNS, Happening, chosen, happenings, rows
from fleet_web.refreshing import follow
from fleet_web.source import TOPICS, in_address
from fleet_web.table import TextTable

if TYPE_CHECKING:
    from fleet_web.source import Source


class LogView:
    """What one open page shows of the log."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._found: list[Happening] = []
        self._kind = self._search = ""
        with ui.element("form").classes("controls").props('role="search" onsubmit="return false"'):
            search("Search", self._look_for)
            Dropdown("Kind", [("", "everything"), *((kind, kind) for kind in KINDS)], self._choose)
        self._table = TextTable("What happened, the newest first", LOG_COLUMNS, empty="Asking the coordinator …")
        self._pager = Pager(self._show)
        follow(source, TOPICS, self.refresh, pause=1.0)

    async def refresh(self) -> None:
        """Show what there is now."""
        self._found = await happenings(self._source)
        self._show()

    def _look_for(self, text: str) -> None:
        self._search, self._pager.page = text, 0
        self._show()

    def _choose(self, kind: str) -> None:
        self._kind, self._pager.page = kind, 0
        self._show()

    def _show(self) -> None:
        found = chosen(self._found, self._kind, self._search)
        self._table.show(rows(self._pager.cut(found), in_address(self._source)), empty="Nothing is like that.")


async def log_page(source: Source) -> None:
    """What happened at a source."""
    LogView(source)
