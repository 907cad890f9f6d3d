"""Format the output of `sojourn job list`, `status` and `watch`: dates, stored models, failures, skipped devices."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from coordinator.console.dates import date_of, short_date
from coordinator.console.job_progress import JobProgress, failure_of, follow
from coordinator.console.live_view import STATUS_STYLES, is_live, result_table, show, show_rounds, status_line
from coordinator.records import ENDED
from coordinator.results.job_metrics import metric_of_view, task_of
from sojourn.errors import JobError
from sojourn.protocol.metric_names import called
from sojourn.protocol.wire import JobView, RoundReport
from sojourn.tables import plain_table
from sojourn.text import as_ranges, clock_of

if TYPE_CHECKING:
    from coordinator.console.operator import Operator


def times_line(view: JobView) -> str:
    """Return when a job was submitted and ended, and how long it took."""
    if view.times.submitted is None:
        return ""
    it = view.times
    parts = [f"submitted {date_of(it.submitted)}"]
    parts += [f"ended {date_of(it.ended)}"] if it.ended is not None else []
    if it.took is not None:
        parts.append(f"{'took' if view.status in ENDED else 'so far'} {clock_of(it.took)}")
    return ", ".join(parts)


def models_line(progress: JobProgress) -> str:
    """Return the rounds whose models can be exported, and the best."""
    models, history = progress.view.models, progress.history
    if not models or not models.rounds or not history:
        return ""
    task = task_of(progress.view)
    best = next((f"; the best is {it.round} ({task.text(it)})" for it in history if it.round == models.best), "")
    return f"stored models: round {as_ranges(models.rounds)}{best}"


def main_metric_text(view: JobView) -> str:
    """Return the main metric of a job's newest model with its name."""
    return f"{called(task_of(view).main)} {metric_of_view(view)}"


def job_table(views: Iterable[JobView], width: int = 80) -> Table:
    """Return a table of jobs; long names are wrapped, and the model is shown if there is room for it."""
    table = plain_table()
    wrapped = ("job", "strategy", "model") if width >= 100 else ("job", "strategy")
    views = list(views)
    plain = all(task_of(it).kind == "classification" for it in views)
    metric = "accuracy" if plain else "metric"
    for name in ("job", "status", "round", metric, "submitted", "ended", "took", *wrapped[1:]):
        justify: JustifyMethod = "right" if name in ("round", metric, "took") else "left"
        table.add_column(name, no_wrap=name not in wrapped, overflow="fold", justify=justify)
    today = time.time()
    for it in views:
        status = Text(it.status, style=STATUS_STYLES.get(it.status, "yellow"))
        times = it.times
        took = clock_of(times.took) if times.took is not None else "-"
        dates = (short_date(times.submitted, today), short_date(times.ended, today), took)
        of = [Text(it.strategy), Text(it.model)][: len(wrapped) - 1]
        shown = metric_of_view(it) if plain else main_metric_text(it)
        table.add_row(Text(it.job), status, f"{it.round}/{it.rounds}", shown, *dates, *of)
    return table


def failure_lines(progress: JobProgress) -> list[str]:
    """Return the failures and notices of the rounds so far, each once with its rounds, and the current ones."""
    view, lines = progress.view, flagged_lines(progress.history)
    if of_rounds := by_line(progress.history):
        lines += ["", "failures and notices"]
        lines += [f"  {line} (round {as_ranges(rounds)})" for line, rounds in of_rounds.items()]
    if now := [line for line in view.notes if line not in of_rounds]:
        lines += ["", "since the last round", *(f"  {line}" for line in now)]
    return [*lines, *selection_lines(progress)]


def flagged_lines(history: Iterable[RoundReport]) -> list[str]:
    """Return the number of visits that the gate would have refused if it only reports."""
    reports = list(history)
    flags, visits = sum(it.flagged for it in reports), sum(it.visits for it in reports)
    line = f'the gate would have refused {flags:,} of {visits:,} visits (gate = "report" refuses none)'
    return ["", line] if flags else []


def selection_lines(progress: JobProgress) -> list[str]:
    """Return the devices selected in every round, and those never selected."""
    view = progress.view
    every = [f"selected in every round so far: {', '.join(view.always)}"] if view.always else []
    none = [f"online, but not selected in any round so far: {', '.join(view.never)}"] if view.never else []
    return ["", *every, *none] if every or none else []


def by_line(history: Iterable[RoundReport]) -> dict[str, list[int]]:
    """Return the rounds in which each line occurs."""
    found: dict[str, list[int]] = {}
    for report in history:
        for line in report.failures:
            found.setdefault(line, []).append(report.round)
    return found


def print_job_status(now: JobProgress) -> None:
    """Print what `sojourn job status` shows: state, times, rounds, failures and kept models."""
    console = Console()
    console.print(status_line(now.view), markup=False, highlight=False)
    if times := times_line(now.view):
        console.print(times, markup=False, highlight=False)
    if now.history:
        console.print(result_table(now))
    for line in failure_lines(now):
        console.print(line, markup=False, highlight=False)
    if kept := models_line(now):
        console.print(kept, markup=False, highlight=False)


def watch_job(operator: Operator, job: str) -> None:
    """Show a job until it ends; raises JobError if it failed or was refused. Ctrl-C only stops watching."""
    console = Console()
    try:
        last: JobProgress = show(follow(operator, job), console)
    except KeyboardInterrupt:
        typer.echo(f"The job continues. To watch it again: {operator.command(f'job watch {job}')}")
        raise typer.Exit(0) from None
    show_rounds(last, console)
    if failed := failure_of(last.view):
        again = f". Fix this, then continue the job: {operator.command(f'job continue {job}')}"
        raise JobError(failed + (again if last.view.status == "failed" else ""))
    if is_live(console):  # otherwise it is already the last line
        console.print(status_line(last.view), markup=False, highlight=False)
