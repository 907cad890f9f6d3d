"""A job on the screen: a live view in a terminal, plain lines elsewhere, and the table of its rounds at the end."""

from __future__ import annotations

import re
import time
from math import isfinite, nan
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.console.dates import time_of
from coordinator.console.time_left import TimeLeft, describe_time_left, rounds_done
from coordinator.console.tour_lines import tour_lines
from coordinator.console.visit_rate import VisitRate, describe_rate
from coordinator.results.measures import MEASURES
from coordinator.results.task_figures import PLAIN, TaskFigures, figure_in, task_of
from sojourn.figures import clock_of
from sojourn.protocol.figure_names import OWN, SHARES, VOTE, called, finisher_names, own_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import JobView, RoundReport

MOST_FAILURES = 3
MOST_ROUNDS = 20
"""A table has this many rounds at most: with what stands around it, it fits on a screen."""
WORTH_TELLING = 10.0
"""Seconds left that are worth a line."""
BARS = "▁▂▃▄▅▆▇█"
_SECONDS = re.compile(r", \d+ s$")
CLASSES = TaskFigures()
ROOM, NARROWEST = 20, 6
"""Columns of a terminal for figures in the table of rounds, and how many a number takes at least."""
BEFORE = ("queued", "compiling", "waiting")
STATUS_STYLES = {"running": "cyan", "done": "green", "stopped": "yellow", "refused": "red", "failed": "red"}


def show(looks: Iterable[JobProgress], console: Console) -> JobProgress:
    """Show a job until it ends; returns how it ended."""
    return _show_live(looks, console) if is_live(console) else _show_plain(looks, console)


def is_live(console: Console) -> bool:
    """Whether a job is drawn over itself as it goes on; elsewhere it is plain lines, which a log can hold."""
    return console.is_terminal and console.encoding.lower().startswith("utf")


def _show_live(looks: Iterable[JobProgress], console: Console) -> JobProgress:
    last, time_left, visit_rate = None, TimeLeft(), VisitRate()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for last in looks:
            now = time.monotonic()
            left, rate = time_left.seconds(last, now), visit_rate.per_second(last, now)
            live.update(screen(last, console.width, left, rate), refresh=True)
    assert last is not None  # noqa: S101  # there is always a first one
    return last


def _show_plain(looks: Iterable[JobProgress], console: Console) -> JobProgress:
    last, time_left = None, TimeLeft()
    for progress in looks:
        for line in lines(last, progress, time_left.seconds(progress, time.monotonic())):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        last = progress
    assert last is not None  # noqa: S101  # there is always a first one
    return last


# --- plain lines


def lines(before: JobProgress | None, after: JobProgress, left: float | None = None) -> list[str]:
    """What has changed, one line each."""
    known = len(before.history) if before else 0
    found = []
    told = {line for report in after.history[:known] for line in report.failures}
    for report in after.history[known:]:
        found += [round_line(report, after.view.rounds, task_of(after.view)), *_new_failures(report, told)]
        told.update(report.failures)
    noted = before.view.notes if before else ()
    found += [f"  {line}" for line in after.view.notes if line not in noted]
    if found and left and left >= WORTH_TELLING and after.view.round % _step(after.view.rounds) == 0:
        found.append(f"  {describe_time_left(left)}")
    status = status_line(after.view)
    # A step that only takes longer is no news.
    if before is None or _SECONDS.sub("", status_line(before.view)) != _SECONDS.sub("", status):
        found.append(status)
    if (after.silent_since is None) != (before is None or before.silent_since is None):
        found.append(f"{silence(after.silent_since)}" if after.silent_since else "the coordinator answers again")
    return found


def _new_failures(report: RoundReport, told: set[str]) -> list[str]:
    """What went wrong in a round, a line each; what a round before had in the same words is only counted."""
    new = [line for line in report.failures if line not in told]
    again = len(report.failures) - len(new)
    return [f"  {line}" for line in new] + ([f"  and {again} as in rounds before"] if again else [])


def _step(rounds: int) -> int:
    """So many rounds apart, a job of this many is looked at some ten times."""
    return max(1, rounds // 10)


def silence(since: float) -> str:
    """What is said of a coordinator that does not answer."""
    return f"no answer from the coordinator since {time_of(since)}: asking on (Ctrl-C ends this, not the job)"


def round_line(report: RoundReport, rounds: int, task: TaskFigures = CLASSES) -> str:
    """A finished round, within 80 columns; how good its arrangement was stands below the last round."""
    names = _told(task, [report])
    most = 3 if names[0].startswith((OWN, VOTE)) else 2
    figures = " ".join(f"{called(name)} {task.text(report, name)}" for name in names[:most])
    return (
        f"round {report.round}/{rounds} {figures} "
        f"visits {report.visits} failed {report.lost} {report.traffic / 1e6:.2f} MB {clock_of(report.seconds)}"
    )


def _told(task: TaskFigures, history: Iterable[RoundReport]) -> list[str]:
    """The figures that a line or a table tells, the main one first: as many as 80 columns have room for.

    Those of a classifier are always the same two, after that of the devices' own models where there are some.
    """
    if task.kind == "classification":
        first = (own_names(task.kind)[0], finisher_names(task.kind)[0])
        own = [name for name in first if name in task.measured(history)]
        return [*own, *PLAIN]
    found, room = [], ROOM
    for name in task.measured(history) or task.names:
        room -= max(NARROWEST, len(called(name)))
        found += [name] if room >= 0 else []
    return found


def status_line(view: JobView) -> str:
    """What a job does now."""
    doing = _doing(view)
    if view.status == "compiling" and doing:
        doing = doing.replace(",", ":", 1)
    return f"job {view.job}: {view.status}{doing}"


def _doing(view: JobView) -> str:
    if view.status == "running":
        return ", estimating devices" if view.phase == "estimate" else ", training"
    return f", {view.detail}" if view.detail else ""


# --- the live view


def screen(progress: JobProgress, width: int, left: float | None = None, rate: float | None = None) -> RenderableType:
    """The whole view; `left` is how many seconds it will still take and `rate` its visits a second, where known."""
    view = progress.view
    parts: list[RenderableType] = [
        _header(view),
        _progress(progress, left, rate),
        _doing_now(progress),
        _figures(progress),
        Text(),
    ]
    if view.tours:
        parts.append(tour_lines(view.tours, width))
    parts += [Text(f"  {line}", style="yellow", overflow="fold") for line in view.notes[:MOST_FAILURES]]
    parts += _failures(progress.history)
    return Group(*parts)


def _header(view: JobView) -> Table:
    grid = Table.grid(expand=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    what = f"  {view.strategy}, {view.model}, {view.devices} devices"
    status = Text(view.status, style=STATUS_STYLES.get(view.status, "yellow"))
    grid.add_row(Text.assemble((view.job, "bold"), (what, "dim")), status)
    return grid


def _progress(progress: JobProgress, left: float | None, rate: float | None) -> Table:
    view = progress.view
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    bar = ProgressBar(total=view.rounds, completed=rounds_done(progress), pulse=view.status in BEFORE)
    if view.status in ("refused", "failed"):
        bar.complete_style = bar.finished_style = "red"
    shown = min(view.round + (view.status == "running"), view.rounds)
    known = [text for text in (describe_rate(rate), describe_time_left(left)) if text]
    grid.add_row(bar, Text.assemble(f"round {shown}/{view.rounds}", *((f"  {text}", "dim") for text in known)))
    return grid


def _doing_now(progress: JobProgress) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1, overflow="fold")  # what a job waits for may need a second line
    grid.add_column(no_wrap=True)
    doing = Text(_doing(progress.view).removeprefix(", "), style="dim")
    if progress.silent_since is not None:
        doing = Text(silence(progress.silent_since), style="yellow")
    task = task_of(progress.view)
    course = [figure_in(report, task.main) for report in progress.history[-30:]]
    grid.add_row(doing, Text(trend(course if task.main in SHARES else _of_largest(course)), style="cyan"))
    return grid


def _figures(progress: JobProgress) -> Text:
    if not progress.history:
        return Text("no round is finished yet", style="dim")
    last, task = progress.history[-1], task_of(progress.view)
    megabytes = sum(report.traffic for report in progress.history) / 1e6
    figures = [
        *((called(name), task.text(last, name)) for name in task.measured([last])),
        *((name, _quality(last, measure)) for measure, name in MEASURES.items()),
        ("", f"{megabytes:.1f} MB"),
    ]
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in figures:
        if value != "-":
            text.append(f"{name} ".lstrip(), "dim").append(f"{value}  ")
    return text


def _quality(report: RoundReport, name: str) -> str:
    value = report.quality.get(name, nan)
    return f"{value:.3f}" if isfinite(value) else "-"


def trend(shares: list[float]) -> str:
    """Shares between 0 and 1 as a row of bars."""
    return "".join(BARS[min(int(share * len(BARS)), len(BARS) - 1)] if isfinite(share) else " " for share in shares)


def _of_largest(values: list[float]) -> list[float]:
    """Values without an upper end as shares of the largest."""
    largest = max((abs(value) for value in values if isfinite(value)), default=0.0)
    return [max(0.0, value / largest) if largest else 0.0 for value in values]


def _failures(history: tuple[RoundReport, ...]) -> list[RenderableType]:
    texts = [f"round {report.round}: {line}" for report in history for line in report.failures]
    if not texts:
        return []
    lost, flags = sum(report.lost for report in history), sum(report.flagged or 0 for report in history)
    counts = [f"visits that failed: {lost}"] if lost else []
    counts += [f"visits that the gate would have refused: {flags}"] if flags else []
    head = Text(f"\n{'; '.join(counts) or 'what to know of the rounds'}", style="yellow")
    newest = texts[-MOST_FAILURES:]
    return [head, *(Text(f"  {line}", style="dim", overflow="fold") for line in newest)]


# --- afterwards


def show_rounds(progress: JobProgress, console: Console) -> None:
    """What a job came to: the table of its rounds where `show` drew over itself, and what its lines left out."""
    if not progress.history:
        return
    if is_live(console):
        console.print(result_table(progress))
        return
    for text in (_others(task_of(progress.view), progress), _arrangements(progress.history)):
        if text:
            console.print(text, markup=False, highlight=False)


def result_table(progress: JobProgress) -> Table:
    """The rounds of a job; of many, some from beginning to end, the best and the last."""
    task = task_of(progress.view)
    shown, figures = some_rounds(progress.history, task), _told(task, progress.history)
    left_out = len(progress.history) - len(shown)
    rest = f"{len(shown)} of {len(progress.history)} rounds, the best and the last among them" if left_out else None
    table = Table(
        title=Text(f"{progress.view.job}: {progress.view.status}"),
        title_justify="left",
        title_style="bold",
        caption="\n".join(filter(None, (rest, _others(task, progress), _arrangements(progress.history)))) or None,
        caption_justify="left",
    )
    for name in ("round", *map(called, figures), "VTS", "visits", "failed", "MB", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for it in shown:
        table.add_row(
            str(it.round),
            *(task.text(it, name) for name in figures),
            _quality(it, "vts"),
            str(it.visits),
            str(it.lost),
            f"{it.traffic / 1e6:.2f}",
            clock_of(it.seconds),
        )
    return table


def _others(task: TaskFigures, progress: JobProgress) -> str | None:
    """The figures of the last round that the table has no room for."""
    last = progress.history[-1]
    found = [name for name in task.measured([last]) if name not in _told(task, progress.history)]
    words = ", ".join(f"{called(name)} {task.text(last, name)}" for name in found)
    return f"at the end: {words}" if words else None


def some_rounds(history: tuple[RoundReport, ...], task: TaskFigures = CLASSES) -> list[RoundReport]:
    """As many rounds as a person reads: at even distances, with the best and the last."""
    if len(history) <= MOST_ROUNDS:
        return list(history)
    step = -(-len(history) // (MOST_ROUNDS - 2))
    best = task.best(history)
    return [it for it in history if it.round % step == 0 or it is best or it is history[-1]]


def _arrangements(history: tuple[RoundReport, ...]) -> str | None:
    """What the arrangements were like, over all rounds; each round's own stand in the lines of a plain terminal."""
    found = []
    for measure, name in MEASURES.items():
        values = [value for it in history if isfinite(value := it.quality.get(measure, nan))]
        found += [f"{name} {sum(values) / len(values):.3f}"] if values else []
    return f"arrangements, mean over rounds: {', '.join(found)}" if found else None
