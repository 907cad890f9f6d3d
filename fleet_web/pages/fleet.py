"""*Fleet*: sites and devices, the state of each one, and a search."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, NamedTuple

from nicegui import ui

from fleet_web.drawing.markup import age
from fleet_web.elements import Cell, Column, Dropdown, Pager, Row, TextTable, Words, address, search_field
from fleet_web.page_updates import follow
from fleet_web.sources.source import Source, in_address
from sojourn.protocol.operator_messages import FleetDevice, ReleaseNow
from sojourn.protocol.release import BAD

STATES = ("training", "online", "declining", "offline")
_TONES = {"training": "accent", "online": "good", "declining": "warn", "offline": "bad"}
COLUMNS = (
    Column("device", "Device", sortable=True),
    Column("state", "State", sortable=True),
    Column("site", "Site", sortable=True),
    Column("version", "Version", sortable=True),
    Column("machine", "Board", sortable=True),
    Column("offers", "Offers", sortable=True),
    Column("serves", "Serves"),
    Column("visits", "Visits", sortable=True, number=True),
    Column("failed", "Failed", sortable=True, number=True),
    Column("last", "Last visit", sortable=True),
)


class FleetChoice(NamedTuple):
    """The filters and the order of the list of devices."""

    search: str = ""
    state: str = ""
    site: str = ""
    sort: str = "device"
    down: bool = False


def state_of(device: FleetDevice) -> str:
    """Return a device's state in one word."""
    if not device.online:
        return "offline"
    if device.doing and device.doing.visit:
        return "training"
    return "declining" if device.last and device.last.status == "declined" else "online"


def chosen(devices: Iterable[FleetDevice], choice: FleetChoice) -> list[FleetDevice]:
    """Return the devices that match the filters, sorted; the search covers all shown fields."""
    words = choice.search.lower().split()
    found = [
        it
        for it in devices
        if (not choice.site or it.site == choice.site)
        and (not choice.state or state_of(it) == choice.state)
        and (not words or _matches(it, words))
    ]
    return sorted(found, key=_ORDERS.get(choice.sort, _name), reverse=choice.down)


def _matches(it: FleetDevice, words: Sequence[str]) -> bool:
    known = " ".join((it.device, it.site, it.version, it.machine, it.last.job if it.last else "", *_lines(it))).lower()
    return all(word in known for word in words)


def _lines(it: FleetDevice) -> list[str]:
    return [f"{each.line} {each.version}" for each in _releases(it)]


def _releases(it: FleetDevice) -> tuple[ReleaseNow, ...]:
    return it.doing.releases if it.doing else ()


def _name(it: FleetDevice) -> tuple[object, ...]:
    """Sort key for natural order: device-2 before device-10."""
    return tuple((part.isdigit(), part.rjust(12, "0") if part.isdigit() else part) for part in _DIGITS.split(it.device))


_DIGITS = re.compile(r"(\d+)")
_ORDERS: dict[str, Callable[[FleetDevice], Any]] = {
    "state": lambda it: (STATES.index(state_of(it)), -it.since),
    "site": lambda it: (it.site, _name(it)),
    "version": lambda it: (it.version, _name(it)),
    "machine": lambda it: (it.machine, _name(it)),
    "offers": lambda it: (it.doing.memory if it.doing else 0, _name(it)),
    "visits": lambda it: it.visits,
    "failed": lambda it: it.failed,
    "last": lambda it: it.last.at if it.last else 0.0,
}


def row(it: FleetDevice, now: float, of: dict[str, str]) -> Row:
    """Return a device as a row; `of` is the source's name in addresses."""
    return Row(
        it.device,
        (
            Cell(it.device, address("device", it.device, **of)),
            Cell(_state_cell(it, now), tone="bad" if it.notice else _TONES[state_of(it)]),
            Cell(it.site),
            Cell(it.version or "-"),
            Cell(it.machine or "-"),
            Cell(offers_text(it)),
            serves(it),
            Cell(f"{it.visits:,}"),
            Cell(f"{it.failed:,}", tone="warn" if it.failed else ""),
            _last(it, now, of),
        ),
    )


def _state_cell(it: FleetDevice, now: float) -> str:
    """Return the state of a device, and its problems."""
    return f"{state_text(it, now)}. {it.notice}" if it.notice else state_text(it, now)


def state_text(it: FleetDevice, now: float) -> str:
    """Describe the state of a device, and how long it has lasted or why."""
    match state_of(it):
        case "training" if it.doing and it.doing.visit:
            visit = it.doing.visit
            share = f", {100 * visit.step // visit.steps} %" if visit.steps else ""
            return f"training {visit.job} round {visit.round}{share}"
        case "declining" if it.last:
            return f"declines: {it.last.reason or 'it gave no reason'}"
        case state:
            return f"{state} for {age(now - it.since)}"


def offers_text(it: FleetDevice) -> str:
    """Summarize what the device offers for training."""
    doing = it.doing
    threads = "1 thread" if doing and doing.threads == 1 else f"{doing.threads if doing else 0} threads"
    return f"{threads}, {doing.memory / 1e9:.1f} GB" if doing and doing.threads else "-"


def serves(it: FleetDevice) -> Cell:
    """Return the releases that the device serves."""
    found = _releases(it)
    unhealthy = any(each.state in BAD for each in found)
    texts = [f"{each.line} {each.version or 'none'}{_state(each)}" for each in found]
    return Cell(", ".join(texts) or "-", tone="bad" if unhealthy else "")


def _state(each: ReleaseNow) -> str:
    return "" if each.state == "serving" else f" ({each.state})"


def _last(it: FleetDevice, now: float, of: dict[str, str]) -> Cell:
    if it.last is None:
        return Cell("-")
    what = f"{it.last.job} round {it.last.round}" if it.last.phase == "train" else f"{it.last.job} estimation"
    tone = "" if it.last.status == "done" else "warn"
    return Cell(f"{what}, {it.last.status}, {age(now - it.last.at)} ago", address("job", it.last.job, **of), tone)


_SITE_COLUMNS = (
    Column("site", "Site"),
    *(Column(state, state.capitalize(), number=True) for state in STATES),
    Column("versions", "Versions"),
)
NO_DEVICE = "No device has been online yet. See the log of the edge server; run `sojourn agent preflight` on a device."


class FleetView:
    """The state of one open page of the fleet; the filters are per page, the devices are shared."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._choice = FleetChoice()
        self._devices: Sequence[FleetDevice] = ()
        self._summary = Words("p", "", role="status").classes("lead")
        with ui.element("details").classes("sites"):
            Words("summary", "Sites")
            self._sites = TextTable("Sites with the number of devices in each state", _SITE_COLUMNS, empty="-")
        with ui.element("form").classes("controls").props('role="search" onsubmit="return false"'):
            search_field(lambda text: self._choose(search=text))
            states = [("", "all states"), *((state, state) for state in STATES)]
            Dropdown("State", states, lambda value: self._choose(state=value))
            self._site = Dropdown("Site", [("", "all sites")], lambda value: self._choose(site=value))
        self._table = TextTable("Devices", COLUMNS, empty="Loading from the coordinator …", on_sort=self._sort)
        self._pager = Pager(self._show)
        follow(source, ("fleet",), self.refresh)

    async def refresh(self) -> None:
        """Update the page."""
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
        empty = "No matching devices." if self._devices else NO_DEVICE
        self._table.show(rows, self._choice.sort, down=self._choice.down, empty=empty)

    def _show_sites(self) -> None:
        sites: dict[str, Counter[str]] = {}
        versions: dict[str, set[str]] = {}
        for it in self._devices:
            sites.setdefault(it.site, Counter())[state_of(it)] += 1
            if it.online:
                versions.setdefault(it.site, set()).add(it.version or "-")
        self._site.set([("", "all sites"), *((site, site) for site in sorted(sites))])
        self._sites.show([_site_row(site, sites[site], versions.get(site, set())) for site in sorted(sites)])
        counts = sum(sites.values(), Counter[str]())
        parts = ", ".join(f"{counts[state]:,} {state}" for state in STATES if counts[state])
        counted = f"{_many(self._devices, 'device')} at {_many(sites, 'site')}: {parts}"
        self._summary.text = counted if self._devices else ""


def _many(things: Sized, word: str) -> str:
    return f"{len(things):,} {word}{'' if len(things) == 1 else 's'}"


def _site_row(site: str, counts: Counter[str], versions: set[str]) -> Row:
    offline = not any(counts[state] for state in STATES if state != "offline")
    name = Cell(f"{site} (offline)" if offline else site, tone="bad" if offline else "")
    cells = (Cell(f"{counts[state]:,}", tone="dim" if not counts[state] else "") for state in STATES)
    return Row(site, (name, *cells, Cell(", ".join(sorted(versions)[:5]) or "-")))


async def fleet_page(source: Source) -> None:
    """Show all devices of a source."""
    FleetView(source)
