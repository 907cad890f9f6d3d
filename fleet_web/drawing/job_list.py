"""The table of all jobs: running jobs first, then waiting jobs, then finished ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordinator.console.job_progress import describe_time_left
from coordinator.console.job_status import main_metric_text
from coordinator.records import ENDED
from fleet_web.drawing.markup import name_of, table
from sojourn.markup import Markup, tag
from sojourn.protocol.wire import JobView
from sojourn.text import clean, clock_of

MAX_JOBS = 500
MAX_DETAIL_LENGTH = 300
ORDER = {"running": 0, "compiling": 1, "waiting": 2, "queued": 3}
HEAD = ("job", "status", "round", "newest model", "took", "left", "strategy", "model", "description")


def job_rows(jobs: Sequence[JobView], link: Callable[[str], str]) -> Markup:
    """Return the table; `link` returns the address of a job's page."""
    if not jobs:
        return tag("p", "No jobs yet. Submit one with: sojourn job submit FILE", class_="dim")
    ordered = sorted(jobs, key=lambda it: ORDER.get(it.status, len(ORDER)))
    rows = [_row(it, link) for it in ordered[:MAX_JOBS]]
    rest = f"; {len(jobs) - MAX_JOBS} older jobs are not shown" if len(jobs) > MAX_JOBS else ""
    return table(HEAD, rows, f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'}{rest}", numbers=(2, 3, 4, 5))


def _row(view: JobView, link: Callable[[str], str]) -> tuple[str, ...]:
    took = view.times.took if view.times else None
    name = tag("a", name_of(view.job), href=link(view.job))
    return (
        name,
        tag("span", view.status, class_=tone(view.status)),
        f"{view.round} of {view.rounds}",
        main_metric_text(view) if view.round else "-",
        "-" if took is None else clock_of(took),
        _left(view, took),
        clean(view.strategy, 60),
        clean(view.model, 60),
        _detail(view),
    )


def _left(view: JobView, took: float | None) -> str:
    """Estimate the remaining time from the mean duration of the finished rounds."""
    if view.status in ENDED or not view.round or not took:
        return "-"
    return "about " + describe_time_left(took / view.round * max(0, view.rounds - view.round)).removesuffix(" left")


def _detail(view: JobView) -> Markup:
    return tag("span", clean(view.detail, MAX_DETAIL_LENGTH), class_=tone(view.status) if failed(view) else None)


def failed(view: JobView) -> bool:
    """Return whether a job was refused or has failed."""
    return view.status in ("refused", "failed")


def tone(status: str) -> str | None:
    """Return the CSS class of a job's status."""
    return {"running": "good", "refused": "bad", "failed": "bad", "stopped": "warn", "waiting": "warn"}.get(status)
