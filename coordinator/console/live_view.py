"""Show a job on the screen: a live view in a terminal, plain lines elsewhere, and a table of its rounds at the end."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from math import isfinite, nan

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.console.dates import time_of
from coordinator.console.job_progress import (
    JobProgress,
    TimeLeft,
    VisitRate,
    describe_rate,
    describe_time_left,
    rounds_done,
)
from coordinator.results.job_metrics import MEASURES, PLAIN, TaskMetrics, metric_in, task_of
from sojourn.protocol.metric_names import OWN, SHARES, VOTE, called, finisher_names, own_names
from sojourn.protocol.wire import JobView, RoundReport, TourView
from sojourn.text import clock_of

MAX_TOURS = 10
BAR = 12
"""Columns of a visit's bar."""
ARROW = " → "


def tour_lines(tours: tuple[TourView, ...], width: int) -> Text:
    """Return a line for each tour. All widths are known, so lines are drawn, which takes half as long as a table."""
    site = min(16, max(4, *(len(tour.site) for tour in tours)))
    hop = max(5, *(len(_hop(tour)) for tour in tours))
    room = max(5, width - site - hop - BAR - 6)
    lines = [Text(f"{'site':{site}}  {'route':{room}}  {'hop':>{hop}}  this visit", "dim")]
    shown = sorted(tours, key=lambda tour: tour.done)[:MAX_TOURS]
    for tour in shown:
        name, way = Text(tour.site), route(tour, room)
        name.truncate(site, overflow="ellipsis", pad=True)
        way.truncate(room, overflow="ellipsis", pad=True)
        lines.append(Text.assemble(name, "  ", way, f"  {_hop(tour):>{hop}}  ", _visit(tour)))
    if len(tours) > len(shown):
        lines.append(Text(f"{'':{site}}  and {len(tours) - len(shown)} more tours", "dim"))
    text = Text("\n").join(lines)
    text.no_wrap, text.overflow = True, "crop"
    return text


def _hop(tour: TourView) -> str:
    return f"{min(tour.hop + (not tour.done), len(tour.hops))}/{len(tour.hops)}"


def _visit(tour: TourView) -> Text:
    if tour.done:
        return Text("arrived", "green")
    done = BAR * min(tour.step, tour.steps) // max(tour.steps, 1)
    return Text.assemble(("━" * done, "bar.complete"), ("━" * (BAR - done), "bar.back"))


def route(tour: TourView, room: int) -> Text:
    """Return the route of the model with its current device highlighted, cut so that this device remains visible."""
    devices = list(tour.hops)
    if tour.device and tour.hop < len(devices):
        devices[tour.hop] = tour.device  # this may be a spare device
    first = 0
    while first < tour.hop and first < len(devices) - 1 and len(ARROW.join(devices[first : tour.hop + 2])) + 4 > room:
        first += 1
    text = Text("…" + ARROW if first else "")
    for at, device in enumerate(devices[first:], first):
        style = "dim" if at < tour.hop else "bold reverse cyan" if at == tour.hop and tour.device else ""
        text.append(ARROW if at > first else "", "dim").append(device, style)
    return text


MAX_FAILURES = 3
MAX_ROUNDS = 20
"""Maximum rounds in a table, so that it fits on a screen with the lines around it."""
MIN_SECONDS_LEFT = 10.0
"""Minimum seconds left for which a line is printed."""
BARS = "▁▂▃▄▅▆▇█"
_SECONDS = re.compile(r", \d+ s$")
CLASSES = TaskMetrics()
METRICS_WIDTH, MIN_WIDTH = 20, 6
"""Columns for metrics in the table of rounds, and the minimum columns of a number."""
BEFORE = ("queued", "compiling", "waiting")
STATUS_STYLES = {"running": "cyan", "done": "green", "stopped": "yellow", "refused": "red", "failed": "red"}


def show(updates: Iterable[JobProgress], console: Console) -> JobProgress:
    """Show a job until it ends; returns its final progress."""
    return _show_live(updates, console) if is_live(console) else _show_plain(updates, console)


def is_live(console: Console) -> bool:
    """Return whether the job is drawn in place; otherwise plain lines are printed, for example to a log."""
    return console.is_terminal and console.encoding.lower().startswith("utf")


def _show_live(updates: Iterable[JobProgress], console: Console) -> JobProgress:
    last, time_left, visit_rate = None, TimeLeft(), VisitRate()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for last in updates:
            now = time.monotonic()
            left, rate = time_left.seconds(last, now), visit_rate.per_second(last, now)
            live.update(screen(last, console.width, left, rate), refresh=True)
    assert last is not None  # noqa: S101  # there is always at least one
    return last


def _show_plain(updates: Iterable[JobProgress], console: Console) -> JobProgress:
    last, time_left = None, TimeLeft()
    for progress in updates:
        for line in lines(last, progress, time_left.seconds(progress, time.monotonic())):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        last = progress
    assert last is not None  # noqa: S101  # there is always at least one
    return last


# --- plain lines


def lines(before: JobProgress | None, after: JobProgress, left: float | None = None) -> list[str]:
    """Return a line for each change."""
    known = len(before.history) if before else 0
    found = []
    reported = {line for report in after.history[:known] for line in report.failures}
    for report in after.history[known:]:
        found += [round_line(report, after.view.rounds, task_of(after.view)), *_new_failures(report, reported)]
        reported.update(report.failures)
    noted = before.view.notes if before else ()
    found += [f"  {line}" for line in after.view.notes if line not in noted]
    step = max(1, after.view.rounds // 10)  # the time left is printed about ten times
    if found and left and left >= MIN_SECONDS_LEFT and after.view.round % step == 0:
        found.append(f"  {describe_time_left(left)}")
    status = status_line(after.view)
    # A step whose time alone has changed is not printed again.
    if before is None or _SECONDS.sub("", status_line(before.view)) != _SECONDS.sub("", status):
        found.append(status)
    if (after.silent_since is None) != (before is None or before.silent_since is None):
        found.append(silence(after.silent_since) if after.silent_since else "the coordinator answers again")
    return found


def _new_failures(report: RoundReport, known: set[str]) -> list[str]:
    """Return a line for each failure of a round; repeated failures of earlier rounds are only counted."""
    new = [line for line in report.failures if line not in known]
    again = len(report.failures) - len(new)
    return [f"  {line}" for line in new] + ([f"  and {again} as in earlier rounds"] if again else [])


def silence(since: float) -> str:
    """Return the notice about a coordinator that does not answer."""
    return f"no answer from the coordinator since {time_of(since)}: retrying (Ctrl-C stops watching, not the job)"


def round_line(report: RoundReport, rounds: int, task: TaskMetrics = CLASSES) -> str:
    """Return a finished round in a line of 80 columns; arrangement quality is printed after the last round."""
    names = _shown_metrics(task, [report])
    most = 3 if names[0].startswith((OWN, VOTE)) else 2
    metrics = " ".join(f"{called(name)} {task.text(report, name)}" for name in names[:most])
    return (
        f"round {report.round}/{rounds} {metrics} "
        f"visits {report.visits} failed {report.lost} {report.traffic / 1e6:.2f} MB {clock_of(report.seconds)}"
    )


def _shown_metrics(task: TaskMetrics, history: Iterable[RoundReport]) -> list[str]:
    """Return the metrics of a line or a table, the main one first: as many as 80 columns have room for.

    A classifier always has the same two, after the metric of the devices' personal models if there is one.
    """
    if task.kind == "classification":
        first = (own_names(task.kind)[0], finisher_names(task.kind)[0])
        own = [name for name in first if name in task.measured(history)]
        return [*own, *PLAIN]
    found, room = [], METRICS_WIDTH
    for name in task.measured(history) or task.names:
        room -= max(MIN_WIDTH, len(called(name)))
        found += [name] if room >= 0 else []
    return found


def status_line(view: JobView) -> str:
    """Return the current status of a job."""
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
    """Return the whole view; `left` is the number of seconds left and `rate` the visits per second, if known."""
    view = progress.view
    parts: list[RenderableType] = [
        _header(view),
        _progress(progress, left, rate),
        _doing_now(progress),
        _metrics(progress),
        Text(),
    ]
    if view.tours:
        parts.append(tour_lines(view.tours, width))
    parts += [Text(f"  {line}", style="yellow", overflow="fold") for line in view.notes[:MAX_FAILURES]]
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
    grid.add_column(ratio=1, overflow="fold")  # the reason for waiting may need a second line
    grid.add_column(no_wrap=True)
    doing = Text(_doing(progress.view).removeprefix(", "), style="dim")
    if progress.silent_since is not None:
        doing = Text(silence(progress.silent_since), style="yellow")
    task = task_of(progress.view)
    course = [metric_in(report, task.main) for report in progress.history[-30:]]
    grid.add_row(doing, Text(trend(course if task.main in SHARES else _of_largest(course)), style="cyan"))
    return grid


def _metrics(progress: JobProgress) -> Text:
    if not progress.history:
        return Text("no round has finished yet", style="dim")
    last, task = progress.history[-1], task_of(progress.view)
    megabytes = sum(report.traffic for report in progress.history) / 1e6
    metrics = [
        *((called(name), task.text(last, name)) for name in task.measured([last])),
        *((name, _quality(last, measure)) for measure, name in MEASURES.items()),
        ("", f"{megabytes:.1f} MB"),
    ]
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in metrics:
        if value != "-":
            text.append(f"{name} ".lstrip(), "dim").append(f"{value}  ")
    return text


def _quality(report: RoundReport, name: str) -> str:
    value = report.quality.get(name, nan)
    return f"{value:.3f}" if isfinite(value) else "-"


def trend(shares: list[float]) -> str:
    """Return shares between 0 and 1 as a row of bars."""
    return "".join(BARS[min(int(share * len(BARS)), len(BARS) - 1)] if isfinite(share) else " " for share in shares)


def _of_largest(values: list[float]) -> list[float]:
    """Return values without an upper bound as shares of the largest."""
    largest = max((abs(value) for value in values if isfinite(value)), default=0.0)
    return [max(0.0, value / largest) if largest else 0.0 for value in values]


def _failures(history: tuple[RoundReport, ...]) -> list[RenderableType]:
    texts = [f"round {report.round}: {line}" for report in history for line in report.failures]
    if not texts:
        return []
    lost, flags = sum(report.lost for report in history), sum(report.flagged for report in history)
    counts = [f"failed visits: {lost}"] if lost else []
    counts += [f"visits that the gate would have refused: {flags}"] if flags else []
    head = Text(f"\n{'; '.join(counts) or 'failures and notices'}", style="yellow")
    newest = texts[-MAX_FAILURES:]
    return [head, *(Text(f"  {line}", style="dim", overflow="fold") for line in newest)]


# --- after the end


def show_rounds(progress: JobProgress, console: Console) -> None:
    """Print a job's result: the table of its rounds after a live view, and what its lines omitted."""
    if not progress.history:
        return
    if is_live(console):
        console.print(result_table(progress))
        return
    for text in (_others(task_of(progress.view), progress), _arrangements(progress.history)):
        if text:
            console.print(text, markup=False, highlight=False)


def result_table(progress: JobProgress) -> Table:
    """Return a table of the rounds of a job; for a long job a selection with the best and the last round."""
    task = task_of(progress.view)
    shown, metrics = some_rounds(progress.history, task), _shown_metrics(task, progress.history)
    left_out = len(progress.history) - len(shown)
    rest = f"{len(shown)} of {len(progress.history)} rounds, including the best and the last" if left_out else None
    table = Table(
        title=Text(f"{progress.view.job}: {progress.view.status}"),
        title_justify="left",
        title_style="bold",
        caption="\n".join(filter(None, (rest, _others(task, progress), _arrangements(progress.history)))) or None,
        caption_justify="left",
    )
    for name in ("round", *map(called, metrics), "VTS", "visits", "failed", "MB", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for it in shown:
        table.add_row(
            str(it.round),
            *(task.text(it, name) for name in metrics),
            _quality(it, "vts"),
            str(it.visits),
            str(it.lost),
            f"{it.traffic / 1e6:.2f}",
            clock_of(it.seconds),
        )
    return table


def _others(task: TaskMetrics, progress: JobProgress) -> str | None:
    """Return the metrics of the last round that do not fit into the table."""
    last = progress.history[-1]
    found = [name for name in task.measured([last]) if name not in _shown_metrics(task, progress.history)]
    words = ", ".join(f"{called(name)} {task.text(last, name)}" for name in found)
    return f"at the end: {words}" if words else None


def some_rounds(history: tuple[RoundReport, ...], task: TaskMetrics = CLASSES) -> list[RoundReport]:
    """Return a readable number of rounds: evenly spaced, with the best and the last."""
    if len(history) <= MAX_ROUNDS:
        return list(history)
    step = -(-len(history) // (MAX_ROUNDS - 2))
    best = task.best(history)
    return [it for it in history if it.round % step == 0 or it is best or it is history[-1]]


def _arrangements(history: tuple[RoundReport, ...]) -> str | None:
    """Return the mean quality of the arrangements over all rounds; plain lines show each round's."""
    found = []
    for measure, name in MEASURES.items():
        values = [value for it in history if isfinite(value := it.quality.get(measure, nan))]
        found += [f"{name} {sum(values) / len(values):.3f}"] if values else []
    return f"arrangements, mean over rounds: {', '.join(found)}" if found else None
