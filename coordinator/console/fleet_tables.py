"""Devices, their comings and goings and their visits on a terminal."""

from __future__ import annotations

import csv
import datetime as dt
from typing import TYPE_CHECKING, Any

import msgspec
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

    from sojourn.protocol.fleet_messages import FleetChange, FleetDevice, LastVisit, ReleaseNow, VisitNote
    from sojourn.protocol.wire import Offer

_STYLES = {"here": "green", "gone": "yellow", "done": "green", "declined": "yellow", "lost": "yellow", "refused": "red",
           "joined": "green", "left": "yellow"}  # fmt: skip
CSV_COLUMNS = ("at", "job", "round", "phase", "tour", "hop", "site", "device", "status", "samples", "loss", "seconds",
               "reason")  # fmt: skip
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))


def device_table(devices: Iterable[FleetDevice], now: float) -> Table:
    """All devices: those that are here first."""
    table = _table("device", "state", "site", "version", "visits", "last visit")
    for it in sorted(devices, key=lambda it: (not it.here, it.device)):
        table.add_row(
            Text(it.device),
            _state(it, now),
            Text(it.site),
            Text(it.version or "-"),
            _visits(it),
            _last(it.last, now),
        )
    return table


def _state(it: FleetDevice, now: float) -> Text:
    """Whether it is here and for how long; what it trains, if it does."""
    state = "here" if it.here else "gone"
    visit = it.doing.visit if it.doing else None
    trains = f", trains {visit.job} round {visit.round}" if visit else ""
    notice = Text(", see below", "red") if it.notice else ""
    return Text.assemble((state, _STYLES[state]), f" {age(now - it.since)}{trains}", notice)


def notice_lines(devices: Iterable[FleetDevice]) -> list[str]:
    """What is wrong with devices, a line for each that has a notice."""
    return [f"{it.device}: {it.notice}" for it in sorted(devices, key=lambda it: it.device) if it.notice]


def summary(devices: Sequence[FleetDevice]) -> str:
    """How many there are."""
    here = sum(it.here for it in devices)
    return f"{len(devices)} devices: {here} here, {len(devices) - here} gone"


def _visits(it: FleetDevice) -> str:
    return f"{it.visits}, {it.failed} failed" if it.failed else str(it.visits)


def _last(last: LastVisit | None, now: float) -> Text:
    if last is None:
        return Text("-")
    what = f"{last.job} round {last.round}" if last.phase == "train" else f"{last.job} estimation"
    why = f": {last.reason}" if last.reason else ""
    return Text.assemble(f"{what}, ", (last.status, _STYLES[last.status]), f", {age(now - last.at)} ago{why}")


def device_lines(it: FleetDevice, now: float) -> list[tuple[str, str]]:
    """What there is to say of one device, in pairs of a word and what it says."""
    state = "here" if it.here else "gone"
    lines = [
        ("state", f"{state} since {moment(it.since)} ({age(now - it.since)})"),
        *([("notice", it.notice)] if it.notice else []),
        ("first seen", moment(it.first)),
        ("site", it.site),
        ("version", it.version or "-"),
        ("machine", it.machine or "-"),
        ("visits", f"{it.visits} that count, {it.failed} that came to nothing"),
        *(("serves", _serves(each)) for each in (it.doing.releases if it.doing else ())),
    ]
    return [*lines, *(offer_lines(it.offer) if it.offer else [("offers", "known while it is here")])]


def _serves(it: ReleaseNow) -> str:
    """What a device serves of a model line, and where it is with it."""
    return f"{it.line} {it.version or 'nothing'} ({it.state}{f': {it.detail}' if it.detail else ''})"


def offer_lines(offer: Offer) -> list[tuple[str, str]]:
    """What a device says that it can do, and of its data."""
    known = offer.abilities if offer.abilities is not msgspec.UNSET else ("not said: an early version",)
    lines = [
        ("memory", f"{offer.memory / 1e9:.1f} GB, {offer.threads} threads"),
        ("runtime", offer.runtime),
        ("objectives", ", ".join(offer.objectives)),
        ("abilities", ", ".join(known)),
        ("shares", ", ".join(offer.shares) or "nothing of its data"),
        ("data", offer.data),
    ]
    summary: Any = getattr(offer, "summary", None)
    return [*lines, *(("", line) for line in (summary.lines() if summary else ()))]


def pairs(lines: Iterable[tuple[str, str]]) -> Table:
    """Words and what they say, each as long as it is."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for word, text in lines:
        table.add_row(word, Text(text))
    return table


def visit_table(visits: Iterable[VisitNote]) -> Table:
    """The visits of a job, the oldest first; why some failed stands below (`reason_lines`)."""
    table = _table("round ended", "round", "device", "site", "status", "samples", "loss", "seconds")
    for it in visits:
        table.add_row(
            moment(it.at),
            _round(it),
            Text(it.device),
            Text(it.site),
            Text(it.status, _STYLES[it.status]),
            str(it.samples) if it.samples else "-",
            f"{it.loss:.4f}" if it.loss is not None else "-",
            f"{it.seconds:.1f}",
        )
    return table


def reason_lines(visits: Iterable[VisitNote]) -> list[str]:
    """Every reason that was given, whole and once, with the devices and rounds that it is of."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for it in visits:
        if it.reason:
            found.setdefault((it.status, it.reason), {})[f"{it.device} ({_word(it)})"] = None
    return [f"{', '.join(who)}: {status}, {reason}" for (status, reason), who in found.items()]


def _round(it: VisitNote) -> str:
    return str(it.round) if it.phase == "train" else "estimation"


def _word(it: VisitNote) -> str:
    return f"round {it.round}" if it.phase == "train" else "estimation"


def history_table(changes: Iterable[FleetChange], visits: Iterable[VisitNote]) -> Table:
    """Comings, goings and visits in the order of time."""
    rows: list[tuple[float, str, str, str]] = [(it.at, it.device, it.event, f"site {it.site}") for it in changes]
    for note in visits:
        why = f": {note.reason}" if note.reason else ""
        rows.append((note.at, note.device, note.status, f"{note.job} {_word(note)}, site {note.site}{why}"))
    table = _table("time", "device", "", "what")
    for at, device, word, what in sorted(rows, key=lambda row: row[0]):
        table.add_row(moment(at), Text(device), Text(word, _STYLES[word]), Text(what))
    return table


def write_csv(visits: Iterable[VisitNote], file: TextIO) -> None:
    """Visits as a table for a spreadsheet; times are UTC."""
    writer = csv.writer(file)
    writer.writerow(CSV_COLUMNS)
    for it in visits:
        row = {**msgspec.structs.asdict(it), "at": dt.datetime.fromtimestamp(it.at, dt.UTC).isoformat()}
        writer.writerow([_harmless(row[column]) for column in CSV_COLUMNS])


def _harmless(value: Any) -> Any:
    """A cell; what a spreadsheet would take for a formula stays text."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value


def moment(at: float) -> str:
    """A time as this machine's clock would show it."""
    return f"{dt.datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def age(seconds: float) -> str:
    """How long ago, in a word or two."""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
