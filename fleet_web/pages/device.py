"""*Device*: what it is, and how it has been."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import ui

from coordinator.console.fleet_tables import device_lines
from fleet_web.controls import Dropdown, Pager
from fleet_web.pages.fleet_rows import state_of, state_text
from fleet_web.pages.release_rows import tone
from fleet_web.pages.visit_rows import VISIT_COLUMNS, mean_bytes, visit_row
from fleet_web.pairs import Pairs
from fleet_web.refreshing import follow
from fleet_web.source import in_address
from fleet_web.table import Cell, Column, Row, TextTable
from fleet_web.times import RUN_CLOCK, moment
from fleet_web.words import Words, address, link
from sojourn.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleet_web.source import Source
    from sojourn.protocol.fleet_messages import FleetDevice, VisitNote
    from sojourn.protocol.release import LineView

VISITS = 1000
"""The last visits of a device that can be leafed through."""
CHANGES = 200
MEANS = 5
"""Jobs of whose rounds the bytes are looked up."""
_RELEASE_COLUMNS = (
    Column("line", "Model line"),
    Column("serves", "Serves"),
    Column("state", "State"),
    Column("d", "Detail"),
)
_CHANGE_COLUMNS = (Column("at", "Time"), Column("event", "What"), Column("site", "Site"))
_STATUSES = (("", "all"), ("done", "done"), ("declined", "declined"), ("lost", "lost"), ("refused", "refused"))


class DeviceHistoryView:
    """What one open page shows of a device."""

    def __init__(self, source: Source, name: str) -> None:
        self._source, self._name = source, name
        self._status = ""
        self._visits: Sequence[VisitNote] = ()
        self._bytes: dict[tuple[str, int], float] = {}
        self._state = Words("p", "", role="status").classes("lead")
        self._pairs = Pairs()
        Words("h2", "Releases")
        self._releases = TextTable("Releases that this device was given", _RELEASE_COLUMNS, empty="It was given none.")
        Words("h2", "Visits")
        with ui.element("div").classes("controls"):
            Dropdown("Shown", _STATUSES, self._choose)
        self._table = TextTable("Visits, the newest first", VISIT_COLUMNS, empty="None is remembered.")
        self._pager = Pager(self._show_visits)
        Words("h2", "Comings and goings")
        self._changes = TextTable("Comings and goings, the newest first", _CHANGE_COLUMNS, empty="None is remembered.")
        follow(source, ("fleet", "releases"), self.refresh)

    async def refresh(self) -> None:
        """Show the device as it is now."""
        device = await self._source.device(self._name)
        self._show_device(device)
        await self._show_releases(device)
        self._visits = await self._source.visits(self._name, last=VISITS)
        self._bytes = await mean_bytes(self._source, self._visits, MEANS)
        self._show_visits()
        changes = await self._source.changes(self._name, CHANGES)
        self._changes.show(
            [
                Row(
                    f"{at}",
                    (
                        Cell(moment(it.at)),
                        Cell(it.event, tone="good" if it.event == "joined" else "warn"),
                        Cell(it.site),
                    ),
                )
                for at, it in enumerate(changes)
            ]
        )

    def _show_device(self, device: FleetDevice) -> None:
        now = self._source.now()
        text = state_text(device, now)
        if self._state.text != text:
            self._state.text = text
            self._state.classes(replace=f"lead state-{state_of(device)}")
        told = [(word or "data", text) for word, text in device_lines(device, now)]
        dated = device.first >= RUN_CLOCK  # a run in a folder has no dates
        self._pairs.show([(word, text) for word, text in told if dated or word not in {"state", "first seen"}])

    async def _show_releases(self, device: FleetDevice) -> None:
        """Which releases it serves, and what became of the rollouts of their lines."""
        of, given = in_address(self._source), device.doing.releases if device.doing else ()
        rows = [
            Row(
                it.line,
                (
                    Cell(it.line, address("release", it.line, **of)),
                    Cell(f"{it.line} {it.version}" if it.version else "nothing"),
                    Cell(it.state, tone=tone(it.state)),
                    Cell(it.detail),
                ),
            )
            for it in given
        ]
        lines = {it.line for it in given}
        for view in await self._source.lines() if lines else ():
            rows += _turns(view, of) if view.line in lines else []
        self._releases.show(rows)

    def _choose(self, status: str) -> None:
        self._status, self._pager.page = status, 0
        self._show_visits()

    def _show_visits(self) -> None:
        found = [it for it in self._visits if not self._status or it.status == self._status]
        of = in_address(self._source)
        rows = [visit_row(it, self._bytes.get((it.job, it.round)), of) for it in self._pager.cut(found)]
        self._table.show(rows)


def _turns(view: LineView, of: dict[str, str]) -> list[Row]:
    """What became of a line's rollouts, the newest first."""
    turns = view.plan.turns if view.plan else ()
    return [
        Row(
            f"{view.line} {it.at} {it.status}",
            (
                Cell(view.line, address("release", view.line, **of)),
                Cell(f"rollout of {view.line} {it.version}"),
                Cell(f"{it.status}, {moment(it.at)}", tone=tone(it.status)),
                Cell(it.detail),
            ),
        )
        for it in reversed(turns)
    ]


async def device_page(source: Source, name: str) -> None:
    """One device of a source."""
    link("All devices", "fleet", **in_address(source))
    try:
        await source.device(name)
    except JobError as error:
        Words("p", str(error), role="alert").classes("bad")
        return
    DeviceHistoryView(source, name)
