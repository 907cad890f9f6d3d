"""Devices as rows: what each is doing in a word, and which of them are asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from fleet_web.table import Cell, Column, Row
from fleet_web.times import age
from fleet_web.words import address
from sojourn.protocol.release import BAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sojourn.protocol.fleet_messages import FleetDevice, ReleaseNow

STATES = ("training", "here", "declining", "gone")
_TONES = {"training": "accent", "here": "good", "declining": "warn", "gone": "bad"}
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
    """Which devices are shown, and in which order."""

    search: str = ""
    state: str = ""
    site: str = ""
    sort: str = "device"
    down: bool = False


def state_of(device: FleetDevice) -> str:
    """What a device is doing, in a word."""
    if not device.here:
        return "gone"
    if device.doing and device.doing.visit:
        return "training"
    return "declining" if device.last and device.last.status == "declined" else "here"


def chosen(devices: Iterable[FleetDevice], choice: FleetChoice) -> list[FleetDevice]:
    """The devices that are asked for, in order; words of the search may stand anywhere in what is known of one."""
    words = choice.search.lower().split()
    found = [
        it
        for it in devices
        if (not choice.site or it.site == choice.site)
        and (not choice.state or state_of(it) == choice.state)
        and (not words or _has(it, words))
    ]
    return sorted(found, key=_ORDERS.get(choice.sort, _name), reverse=choice.down)


def _has(it: FleetDevice, words: Sequence[str]) -> bool:
    known = " ".join((it.device, it.site, it.version, it.machine, it.last.job if it.last else "", *_lines(it))).lower()
    return all(word in known for word in words)


def _lines(it: FleetDevice) -> list[str]:
    return [f"{each.line} {each.version}" for each in _releases(it)]


def _releases(it: FleetDevice) -> tuple[ReleaseNow, ...]:
    return it.doing.releases if it.doing else ()


def _name(it: FleetDevice) -> tuple[object, ...]:
    """Names in the order that people expect: device-2 before device-10."""
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
    """A device in a row; `of` names the source in addresses."""
    return Row(
        it.device,
        (
            Cell(it.device, address("device", it.device, **of)),
            Cell(_noticed(it, now), tone="bad" if it.notice else _TONES[state_of(it)]),
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


def _noticed(it: FleetDevice, now: float) -> str:
    """What a device is doing, and what is wrong with it."""
    return f"{state_text(it, now)}. {it.notice}" if it.notice else state_text(it, now)


def state_text(it: FleetDevice, now: float) -> str:
    """What a device is doing, and for how long or why."""
    match state_of(it):
        case "training" if it.doing and it.doing.visit:
            visit = it.doing.visit
            share = f", {100 * visit.step // visit.steps} %" if visit.steps else ""
            return f"training {visit.job} round {visit.round}{share}"
        case "declining" if it.last:
            return f"declines: {it.last.reason or 'it did not say why'}"
        case "gone":
            return f"gone for {age(now - it.since)}"
        case _:
            return f"here for {age(now - it.since)}"


def offers_text(it: FleetDevice) -> str:
    """What it offers, in short."""
    doing = it.doing
    threads = "1 thread" if doing and doing.threads == 1 else f"{doing.threads if doing else 0} threads"
    return f"{threads}, {doing.memory / 1e9:.1f} GB" if doing and doing.threads else "-"


def serves(it: FleetDevice) -> Cell:
    """Which releases it serves."""
    found = _releases(it)
    ill = any(each.state in BAD for each in found)
    texts = [f"{each.line} {each.version or 'none'}{_state(each)}" for each in found]
    return Cell(", ".join(texts) or "-", tone="bad" if ill else "")


def _state(each: ReleaseNow) -> str:
    return "" if each.state == "serving" else f" ({each.state})"


def _last(it: FleetDevice, now: float, of: dict[str, str]) -> Cell:
    if it.last is None:
        return Cell("-")
    what = f"{it.last.job} round {it.last.round}" if it.last.phase == "train" else f"{it.last.job} estimation"
    tone = "" if it.last.status == "done" else "warn"
    return Cell(f"{what}, {it.last.status}, {age(now - it.last.at)} ago", address("job", it.last.job, **of), tone)
