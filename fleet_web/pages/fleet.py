"""*Fleet*: sites and devices, what each does, and with what."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from nicegui import ui

from fleet_web.controls import Dropdown, Pager, search
from fleet_web.pages.fleet_rows import COLUMNS, STATES, FleetChoice, chosen, row, state_of
from fleet_web.refreshing import follow
from fleet_web.source import in_address
from fleet_web.table import Cell, Column, Row, TextTable
from fleet_web.words import Words

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from fleet_web.source import Source
    from sojourn.protocol.fleet_messages import FleetDevice

_SITE_COLUMNS = (
    Column("site", "Site"),
    *(Column(state, state.capitalize(), number=True) for state in STATES),
    Column("versions", "Versions"),
)
NO_DEVICE = "No device was ever here: see the log of the edge server, and `sojourn agent preflight` on a device."


class FleetView:
    """What one open page shows of the fleet: the choice is its own, the devices are everybody's."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._choice = FleetChoice()
        self._devices: Sequence[FleetDevice] = ()
        self._summary = Words("p", "", role="status").classes("lead")
        with ui.element("details").classes("sites"):
            Words("summary", "Sites")
            self._sites = TextTable("Sites and how many of their devices are in which state", _SITE_COLUMNS, empty="-")
        with ui.element("form").classes("controls").props('role="search" onsubmit="return false"'):
            search("Search", lambda text: self._choose(search=text))
            states = [("", "all states"), *((state, state) for state in STATES)]
            Dropdown("State", states, lambda value: self._choose(state=value))
            self._site = Dropdown("Site", [("", "all sites")], lambda value: self._choose(site=value))
        self._table = TextTable("Devices", COLUMNS, empty="Asking the coordinator …", on_sort=self._sort)
        self._pager = Pager(self._show)
        follow(source, ("fleet",), self.refresh)

    async def refresh(self) -> None:
        """Show the devices as they are now."""
        self._devices = await self._source.devices()
        self._show_sites()
        self._show()

    def _choose(self, **changes: Any) -> None:
        self._choice = self._choice._replace(**changes)
        self._pager.page = 0
        self._show()

    def _sort(self, column: str) -> None:
        if column in {it.key for it in COLUMNS if it.sortable}:
            self._choose(sort=column, down=not self._choice.down if column == self._choice.sort else False)

    def _show(self) -> None:
        found = chosen(self._devices, self._choice)
        now, of = self._source.now(), in_address(self._source)
        rows = [row(it, now, of) for it in self._pager.cut(found)]
        empty = "No device is like that." if self._devices else NO_DEVICE
        self._table.show(rows, self._choice.sort, down=self._choice.down, empty=empty)

    def _show_sites(self) -> None:
        sites: dict[str, Counter[str]] = {}
        versions: dict[str, set[str]] = {}
        for it in self._devices:
            sites.setdefault(it.site, Counter())[state_of(it)] += 1
            if it.here:
                versions.setdefault(it.site, set()).add(it.version or "-")
        self._site.set([("", "all sites"), *((site, site) for site in sorted(sites))])
        self._sites.show([_site_row(site, sites[site], versions.get(site, set())) for site in sorted(sites)])
        counts = sum(sites.values(), Counter[str]())
        parts = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
        text = f"{_many(self._devices, 'device')} at {_many(sites, 'site')}: {parts}" if self._devices else ""
        if self._summary.text != text:
            self._summary.text = text


def _many(things: Sized, word: str) -> str:
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"


def _site_row(site: str, counts: Counter[str], versions: set[str]) -> Row:
    lost = not any(counts[state] for state in STATES if state != "gone")
    name = Cell(f"{site} (nobody is here)" if lost else site, tone="bad" if lost else "")
    figures = (Cell(f"{counts[state]:,}", tone="dim" if not counts[state] else "") for state in STATES)
    return Row(site, (name, *figures, Cell(", ".join(sorted(versions)[:5]) or "-")))


async def fleet_page(source: Source) -> None:
    """All devices of a source."""
    FleetView(source)
