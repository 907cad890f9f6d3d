"""What a person reads of jobs that is no matter of rounds: when they ran, for how long, and whose models are kept."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from coordinator.console.dates import date_of, short_date
from coordinator.console.watching import STATUS_STYLES
from coordinator.records import ENDED
from coordinator.results.task_figures import figure_of_view, task_of
from coordinator.state import as_ranges
from sojourn.figures import clock_of
from sojourn.protocol.figure_names import called
from sojourn.protocol.wire import JobTimes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import JustifyMethod

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import JobView


def times_line(view: JobView) -> str:
    """When a job was submitted and ended, and how long it took; nothing where an older coordinator does not say."""
    if not view.times or view.times.submitted is None:
        return ""
    it = view.times
    parts = [f"submitted {date_of(it.submitted)}"]
    parts += [f"ended {date_of(it.ended)}"] if it.ended is not None else []
    if it.took is not None:
        parts.append(f"{'took' if view.status in ENDED else 'so far'} {clock_of(it.took)}")
    return ", ".join(parts)


def models_line(progress: JobProgress) -> str:
    """The rounds whose models can be exported, and the best; nothing where an older coordinator does not say."""
    models, history = progress.view.models, progress.history
    if not models or not models.rounds or not history:
        return ""
    task = task_of(progress.view)
    best = next((f"; the best is {it.round} ({task.text(it)})" for it in history if it.round == models.best), "")
    return f"models are kept of round {as_ranges(models.rounds)}{best}"


def figure_words(view: JobView) -> str:
    """How good a job's newest model is, with the figure's name."""
    return f"{called(task_of(view).main)} {figure_of_view(view)}"


def job_table(views: Iterable[JobView], width: int = 80) -> Table:
    """All jobs of a coordinator; long names are wrapped, and the model is shown where there is room for it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    wrapped = ("job", "strategy", "model") if width >= 100 else ("job", "strategy")
    views = list(views)
    plain = all(task_of(it).kind == "classification" for it in views)
    figure = "accuracy" if plain else "figure"
    for name in ("job", "status", "round", figure, "submitted", "ended", "took", *wrapped[1:]):
        justify: JustifyMethod = "right" if name in ("round", figure, "took") else "left"
        table.add_column(name, no_wrap=name not in wrapped, overflow="fold", justify=justify)
    today = time.time()
    for it in views:
        status = Text(it.status, style=STATUS_STYLES.get(it.status, "yellow"))
        times = it.times or JobTimes()
        took = clock_of(times.took) if times.took is not None else "-"
        dates = (short_date(times.submitted, today), short_date(times.ended, today), took)
        of = [Text(it.strategy), Text(it.model)][: len(wrapped) - 1]
        shown = figure_of_view(it) if plain else figure_words(it)
        table.add_row(Text(it.job), status, f"{it.round}/{it.rounds}", shown, *dates, *of)
    return table
