"""Devices, their visits and the audit log as tables on a terminal."""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import msgspec
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinator.console.dates import age, date_of, moment
from sojourn.protocol.operator_messages import FleetChange, FleetDevice, LastVisit, ReleaseNow, VisitNote
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.wire import Offer
from sojourn.tables import plain_table
from sojourn.text import clean, quantity

_PRESENCE = {True: "online", False: "offline"}
_STYLES = {"online": "green", "offline": "yellow", "done": "green", "declined": "yellow", "lost": "yellow",
           "refused": "red"}  # fmt: skip
CSV_COLUMNS = ("at", "job", "round", "phase", "tour", "hop", "site", "device", "status", "samples", "loss", "seconds",
               "reason")  # fmt: skip


def device_table(devices: Iterable[FleetDevice], now: float) -> Table:
    """Return a table of all devices, online ones first."""
    table = plain_table("device", "state", "site", "version", "visits", "last visit")
    for it in sorted(devices, key=lambda it: (not it.online, it.device)):
        table.add_row(
            Text(it.device),
            _state(it, now),
            Text(it.site),
            Text(it.version or "-"),
            f"{it.visits}, {it.failed} failed" if it.failed else str(it.visits),
            _last(it.last, now),
        )
    return table


def _state(it: FleetDevice, now: float) -> Text:
    """Return whether a device is online and since when, and what it trains."""
    state = _PRESENCE[it.online]
    visit = it.doing.visit if it.doing else None
    trains = f", trains {visit.job} round {visit.round}" if visit else ""
    notice = Text(", see below", "red") if it.notice else ""
    return Text.assemble((state, _STYLES[state]), f" {age(now - it.since)}{trains}", notice)


def notice_lines(devices: Iterable[FleetDevice]) -> list[str]:
    """Return a line for each device with a notice."""
    return [f"{it.device}: {it.notice}" for it in sorted(devices, key=lambda it: it.device) if it.notice]


def summary(devices: Sequence[FleetDevice]) -> str:
    """Return the number of devices."""
    here = sum(it.online for it in devices)
    return f"{quantity(len(devices), 'device')}: {here} online, {len(devices) - here} offline"


def _last(last: LastVisit | None, now: float) -> Text:
    if last is None:
        return Text("-")
    what = f"{last.job} round {last.round}" if last.phase == "train" else f"{last.job} estimation"
    why = f": {last.reason}" if last.reason else ""
    return Text.assemble(f"{what}, ", (last.status, _STYLES[last.status]), f", {age(now - last.at)} ago{why}")


def device_lines(it: FleetDevice, now: float) -> list[tuple[str, str]]:
    """Return the properties of one device as pairs of name and value."""
    lines = [
        ("state", f"{_PRESENCE[it.online]} since {moment(it.since)} ({age(now - it.since)})"),
        *([("notice", it.notice)] if it.notice else []),
        ("first seen", moment(it.first)),
        ("site", it.site),
        ("version", it.version or "-"),
        ("machine", it.machine or "-"),
        ("visits", f"{it.visits} successful, {it.failed} failed"),
        *(("serves", _serves(each)) for each in (it.doing.releases if it.doing else ())),
    ]
    return [*lines, *(offer_lines(it.offer) if it.offer else [("offers", "known only while it is online")])]


def _serves(it: ReleaseNow) -> str:
    """Return what a device serves of a model line, and its state."""
    return f"{it.line} {it.version or 'nothing'} ({it.state}{f': {it.detail}' if it.detail else ''})"


def offer_lines(offer: Offer) -> list[tuple[str, str]]:
    """Return what a device offers, and the properties of its data."""
    lines = [
        ("memory", f"{offer.memory / 1e9:.1f} GB, {offer.threads} threads"),
        ("runtime", offer.runtime),
        ("objectives", ", ".join(offer.objectives)),
        ("abilities", ", ".join(offer.abilities)),
        ("shares", ", ".join(offer.shares) or "nothing of its data"),
        ("data", offer.data),
    ]
    summary: Any = getattr(offer, "summary", None)
    return [*lines, *(("", line) for line in (summary.lines() if summary else ()))]


def pairs(lines: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values of any length."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for word, text in lines:
        table.add_row(word, Text(text))
    return table


def visit_table(visits: Iterable[VisitNote]) -> Table:
    """Return a table of a job's visits, the oldest first; `reason_lines` has the reasons of failures."""
    table = plain_table("round ended", "round", "device", "site", "status", "samples", "loss", "seconds")
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
    """Return every reason once and in full, with its devices and rounds."""
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
    """Return connections and visits in order of time."""
    rows: list[tuple[float, str, str, str]] = [(it.at, it.device, it.event, f"site {it.site}") for it in changes]
    for note in visits:
        why = f": {note.reason}" if note.reason else ""
        rows.append((note.at, note.device, note.status, f"{note.job} {_word(note)}, site {note.site}{why}"))
    table = plain_table("time", "device", "", "what")
    for at, device, word, what in sorted(rows, key=lambda row: row[0]):
        table.add_row(moment(at), Text(device), Text(word, _STYLES[word]), Text(what))
    return table


def write_csv(visits: Iterable[VisitNote], file: TextIO) -> None:
    """Write visits as a CSV table; times are UTC."""
    writer = csv.writer(file)
    writer.writerow(CSV_COLUMNS)
    for it in visits:
        row = {**msgspec.structs.asdict(it), "at": dt.datetime.fromtimestamp(it.at, dt.UTC).isoformat()}
        writer.writerow([_harmless(row[column]) for column in CSV_COLUMNS])


def _harmless(value: Any) -> Any:
    """Return a cell in a form that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@" and value else value


def audit_table(entries: Sequence[AuditEntry]) -> Table:
    """Return entries as a table, the newest last."""
    table = plain_table("number", "when", "who", "signed", "what", "outcome")
    for it in entries:
        outcome = f"{it.outcome}: {it.detail}" if it.detail else it.outcome
        words = (str(it.number), date_of(it.at), it.who, "yes" if it.proof else "no", it.what, outcome)
        table.add_row(*(escape(clean(word)) for word in words))
    return table


def plain(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry as a dictionary, with bytes as hexadecimal digits."""
    proof = {"request": entry.proof.request.hex(), "signature": entry.proof.signature.hex()} if entry.proof else None
    bytes_ = {"proof": proof, "before": entry.before.hex(), "hash": entry.digest.hex()}
    return msgspec.structs.asdict(entry) | bytes_
