"""All jobs in a table: those that run first, then those that wait, then those that are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.console.job_tables import figure_words
from coordinator.console.time_left import describe_time_left
from coordinator.records import ENDED
from fleet_web.drawing.markup import Markup, name_of, table, tag
from sojourn.figures import clock_of
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sojourn.protocol.wire import JobView

MOST = 500
DETAIL = 300
ORDER = {"running": 0, "compiling": 1, "waiting": 2, "queued": 3}
HEAD = ("job", "status", "round", "newest model", "took", "left", "strategy", "model", "what it does")


def job_rows(jobs: Sequence[JobView], link: Callable[[str], str]) -> Markup:
    """The table; `link` gives the address of a job's page."""
    if not jobs:
        return tag("p", "There is no job yet: sojourn job submit FILE", class_="dim")
    ordered = sorted(jobs, key=lambda it: ORDER.get(it.status, len(ORDER)))
    rows = [_row(it, link) for it in ordered[:MOST]]
    rest = f"; {len(jobs) - MOST} older ones are left out" if len(jobs) > MOST else ""
    return table(HEAD, rows, f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'}{rest}", numbers=(2, 3, 4, 5))


def _row(view: JobView, link: Callable[[str], str]) -> tuple[str, ...]:
    took = view.times.took if view.times else None
    name = tag("a", name_of(view.job), href=link(view.job))
    return (
        name,
        tag("span", view.status, class_=tone(view.status)),
        f"{view.round} of {view.rounds}",
        figure_words(view) if view.round else "-",
        "-" if took is None else clock_of(took),
        _left(view, took),
        clean(view.strategy, 60),
        clean(view.model, 60),
        _detail(view),
    )


def _left(view: JobView, took: float | None) -> str:
    """About how long it will still take, at the pace of the rounds so far."""
    if view.status in ENDED or not view.round or not took:
        return "-"
    return "about " + describe_time_left(took / view.round * max(0, view.rounds - view.round)).removesuffix(" left")


def _detail(view: JobView) -> Markup:
    return tag("span", clean(view.detail, DETAIL), class_=tone(view.status) if failed(view) else None)


def failed(view: JobView) -> bool:
    """Whether a job ended in vain."""
    return view.status in ("refused", "failed")


def tone(status: str) -> str | None:
    """How a job's status is coloured."""
    return {"running": "good", "refused": "bad", "failed": "bad", "stopped": "warn", "waiting": "warn"}.get(status)
