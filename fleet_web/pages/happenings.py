"""What happened, from all roles, as one list: comings, goings, visits, rounds, jobs, rollouts, operators' acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fleet_web.pages.release_rows import tone
from fleet_web.pages.visit_rows import TONES
from fleet_web.table import Cell, Column, Row
from fleet_web.times import moment
from fleet_web.words import address
from sojourn.about import ordinal
from sojourn.errors import LinkError, SojournError
from sojourn.figures import clock_of, number, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fleet_web.source import Source
    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.fleet_messages import FleetChange, VisitNote
    from sojourn.protocol.release import LineView
    from sojourn.protocol.wire import JobView, RoundReport

KINDS = ("device", "visit", "failed visit", "round", "job", "release", "operator")
LOG_COLUMNS = (Column("at", "Time"), Column("kind", "Kind"), Column("who", "Who"), Column("what", "What"))
LAST = 500
"""Of each kind, the newest."""
JOBS = 8
"""Jobs whose rounds are in the log: the newest."""


class Happening(NamedTuple):
    """Something that happened."""

    at: float
    kind: str
    who: str
    what: str
    link: tuple[str, ...] = ()
    """The page that it is about."""
    tone: str = ""


async def happenings(source: Source) -> list[Happening]:
    """What happened, the newest first; what cannot be had is left out."""
    found: list[Happening] = []
    found += [_change(it) for it in await source.changes(last=LAST)]
    found += [_visit(it) for it in await source.visits(last=LAST)]
    for view in (await source.jobs())[:JOBS]:
        found += _job(view)
        try:
            found += [_round(view.job, it) for it in (await source.job(view.job)).history[-LAST:] if it.ended]
        except LinkError:
            raise
        except SojournError:  # it was removed just now
            continue
    for line in await source.lines():
        found += _turns(line)
    found += [_act(it) for it in await source.acts(LAST)]
    return sorted(found, key=lambda it: it.at, reverse=True)


def chosen(found: Iterable[Happening], kind: str, search: str) -> list[Happening]:
    """Those of a kind in which all words of the search stand."""
    words = search.lower().split()
    return [
        it
        for it in found
        if (not kind or it.kind == kind or (kind == "visit" and it.kind == "failed visit"))
        and all(word in f"{it.who} {it.what} {it.kind}".lower() for word in words)
    ]


def rows(shown: Sequence[Happening], of: dict[str, str]) -> list[Row]:
    """As rows; `of` names the source in addresses. Two that are alike have different keys."""
    counts: dict[str, int] = {}
    found = []
    for it in shown:
        key = f"{it.at} {it.kind} {it.who} {it.what}"[:300]
        counts[key] = counts.get(key, 0) + 1
        href = address(*it.link, **of) if it.link else ""
        cells = (Cell(moment(it.at)), Cell(it.kind), Cell(it.who, href), Cell(it.what, tone=it.tone))
        found.append(Row(f"{key} {counts[key]}", cells))
    return found


def _change(it: FleetChange) -> Happening:
    word, mood = ("came", "good") if it.event == "joined" else ("went", "warn")
    return Happening(it.at, "device", it.device, f"{word}, site {it.site}", ("device", it.device), mood)


def _visit(it: VisitNote) -> Happening:
    what = f"{it.job} round {it.round}" if it.phase == "train" else f"{it.job} estimation"
    loss = f", loss {number(it.loss)}" if it.loss is not None else ""
    why = f": {it.reason}" if it.reason else ""
    took = f", {clock_of(it.seconds)}" if it.seconds else ""
    kind = "visit" if it.status == "done" else "failed visit"
    text = f"{it.status} {what}, tour {ordinal(it.tour)} hop {ordinal(it.hop)}{took}{loss}{why}"
    return Happening(it.at, kind, it.device, text, ("device", it.device), TONES[it.status])


def _round(job: str, it: RoundReport) -> Happening:
    failed = f", {it.lost} failed: {'; '.join(it.failures)}" if it.lost else ""
    figures = f"accuracy {percent(it.accuracy)}, loss {number(it.loss)}"
    text = f"round {it.round} closed: {figures}, {it.visits} visits, {it.traffic / 1e6:.2f} MB{failed}"
    return Happening(it.ended or 0.0, "round", job, text, ("job", job), "warn" if it.lost else "")


def _job(view: JobView) -> list[Happening]:
    times, at = view.times, ("job", view.job)
    found = []
    if times and times.submitted:
        found.append(Happening(times.submitted, "job", view.job, f"submitted ({view.strategy}, {view.model})", at))
    if times and times.ended:
        mood = "good" if view.status == "done" else "bad" if view.status in ("refused", "failed") else "warn"
        found.append(Happening(times.ended, "job", view.job, f"{view.status}: {view.detail}", at, mood))
    return found


def _turns(line: LineView) -> list[Happening]:
    turns = line.plan.turns if line.plan else ()
    found = []
    for it in turns:
        text = f"the rollout of {it.version} is {it.status}{f': {it.detail}' if it.detail else ''}"
        found.append(Happening(it.at, "release", line.line, text, ("release", line.line), tone(it.status)))
    return found


def _act(it: AuditEntry) -> Happening:
    why = f": {it.detail}" if it.detail else ""
    signed = "signed" if it.proof else "not signed"
    return Happening(
        it.at, "operator", it.who, f"{it.what}, {it.outcome} ({signed}){why}", (), "" if it.outcome == "done" else "bad"
    )
