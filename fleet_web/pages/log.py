"""*Log*: events from all roles, newest first: devices, visits, rounds, jobs, rollouts, operator actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nicegui import ui

from fleet_web.drawing.markup import moment
from fleet_web.elements import Cell, Column, Dropdown, Pager, Row, TextTable, address, search_field
from fleet_web.page_updates import follow
from fleet_web.pages.device import TONES
from fleet_web.pages.releases import tone
from fleet_web.sources.source import TOPICS, Source, in_address
from sojourn.errors import LinkError, SojournError
from sojourn.logs import ordinal
from sojourn.protocol.operator_messages import FleetChange, VisitNote
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.release import LineView
from sojourn.protocol.wire import JobView, RoundReport
from sojourn.text import clock_of, number, percent

KINDS = ("device", "visit", "failed visit", "round", "job", "release", "operator")
LOG_COLUMNS = (Column("at", "Time"), Column("kind", "Kind"), Column("who", "Who"), Column("what", "What"))
LAST = 500
"""Number of newest events to show of each kind."""
JOBS = 8
"""Number of newest jobs whose rounds are in the log."""


class Event(NamedTuple):
    """An event in the log."""

    at: float
    kind: str
    who: str
    what: str
    link: tuple[str, ...] = ()
    """The path of the page about it."""
    tone: str = ""


async def events(source: Source) -> list[Event]:
    """Return the events, newest first; skip sources that fail to load."""
    found: list[Event] = []
    found += [_change(it) for it in await source.changes(last=LAST)]
    found += [_visit(it) for it in await source.visits(last=LAST)]
    for view in (await source.jobs())[:JOBS]:
        found += _job(view)
        try:
            found += [_round(view.job, it) for it in (await source.job(view.job)).history[-LAST:] if it.ended]
        except LinkError:
            raise
        except SojournError:  # the job was just removed
            continue
    for line in await source.lines():
        found += _turns(line)
    found += [_act(it) for it in await source.acts(LAST)]
    return sorted(found, key=lambda it: it.at, reverse=True)


def chosen(found: Iterable[Event], kind: str, search: str) -> list[Event]:
    """Return the events of a kind that contain all words of the search."""
    words = search.lower().split()
    return [
        it
        for it in found
        if (not kind or it.kind == kind or (kind == "visit" and it.kind == "failed visit"))
        and all(word in f"{it.who} {it.what} {it.kind}".lower() for word in words)
    ]


def rows(shown: Sequence[Event], of: dict[str, str]) -> list[Row]:
    """Return the events as rows with distinct keys; `of` is the source's name in addresses."""
    counts: dict[str, int] = {}
    found = []
    for it in shown:
        key = f"{it.at} {it.kind} {it.who} {it.what}"[:300]
        counts[key] = counts.get(key, 0) + 1
        href = address(*it.link, **of) if it.link else ""
        cells = (Cell(moment(it.at)), Cell(it.kind), Cell(it.who, href), Cell(it.what, tone=it.tone))
        found.append(Row(f"{key} {counts[key]}", cells))
    return found


def _change(it: FleetChange) -> Event:
    mood = "good" if it.event == "online" else "warn"
    return Event(it.at, "device", it.device, f"{it.event}, site {it.site}", ("device", it.device), mood)


def _visit(it: VisitNote) -> Event:
    what = f"{it.job} round {it.round}" if it.phase == "train" else f"{it.job} estimation"
    loss = f", loss {number(it.loss)}" if it.loss is not None else ""
    why = f": {it.reason}" if it.reason else ""
    took = f", {clock_of(it.seconds)}" if it.seconds else ""
    kind = "visit" if it.status == "done" else "failed visit"
    text = f"{it.status} {what}, tour {ordinal(it.tour)} hop {ordinal(it.hop)}{took}{loss}{why}"
    return Event(it.at, kind, it.device, text, ("device", it.device), TONES[it.status])


def _round(job: str, it: RoundReport) -> Event:
    failed = f", {it.lost} failed: {'; '.join(it.failures)}" if it.lost else ""
    metrics = f"accuracy {percent(it.accuracy)}, loss {number(it.loss)}"
    text = f"round {it.round} finished: {metrics}, {it.visits} visits, {it.traffic / 1e6:.2f} MB{failed}"
    return Event(it.ended or 0.0, "round", job, text, ("job", job), "warn" if it.lost else "")


def _job(view: JobView) -> list[Event]:
    times, at = view.times, ("job", view.job)
    found = []
    if times and times.submitted:
        found.append(Event(times.submitted, "job", view.job, f"submitted ({view.strategy}, {view.model})", at))
    if times and times.ended:
        mood = "good" if view.status == "done" else "bad" if view.status in ("refused", "failed") else "warn"
        found.append(Event(times.ended, "job", view.job, f"{view.status}: {view.detail}", at, mood))
    return found


def _turns(line: LineView) -> list[Event]:
    turns = line.plan.turns if line.plan else ()
    found = []
    for it in turns:
        text = f"the rollout of {it.version} is {it.status}{f': {it.detail}' if it.detail else ''}"
        found.append(Event(it.at, "release", line.line, text, ("release", line.line), tone(it.status)))
    return found


def _act(it: AuditEntry) -> Event:
    why = f": {it.detail}" if it.detail else ""
    signed = "signed" if it.proof else "not signed"
    return Event(
        it.at, "operator", it.who, f"{it.what}, {it.outcome} ({signed}){why}", (), "" if it.outcome == "done" else "bad"
    )


class LogView:
    """The state of one open log page."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._found: list[Event] = []
        self._kind = self._search = ""
        with ui.element("form").classes("controls").props('role="search" onsubmit="return false"'):
            search_field(self._look_for)
            Dropdown("Kind", [("", "everything"), *((kind, kind) for kind in KINDS)], self._choose)
        self._table = TextTable("Events, newest first", LOG_COLUMNS, empty="Loading from the coordinator …")
        self._pager = Pager(self._show)
        follow(source, TOPICS, self.refresh, pause=1.0)

    async def refresh(self) -> None:
        """Update the page."""
        self._found = await events(self._source)
        self._show()

    def _look_for(self, text: str) -> None:
        self._search, self._pager.page = text, 0
        self._show()

    def _choose(self, kind: str) -> None:
        self._kind, self._pager.page = kind, 0
        self._show()

    def _show(self) -> None:
        found = chosen(self._found, self._kind, self._search)
        self._table.show(rows(self._pager.cut(found), in_address(self._source)), empty="No matching events.")


async def log_page(source: Source) -> None:
    """Show the events of a source."""
    LogView(source)
