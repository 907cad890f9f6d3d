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

from coordinator.console.time_left import TimeLeft, describe_time_left, rounds_done

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import JustifyMethod, RenderableType

    from coordinator.console.following import JobProgress
    from sojourn.protocol.wire import JobView, RoundReport, TourView

MEASURES = {
    "vts": "VTS",
    "intra_cs": "intra",
    "inter_cs": "inter",
    "balance": "balance",
    "covered": "classes",
    "cpd": "CPD",
}
"""The measures of an arrangement, by the names that people read."""
MOST_TOURS = 10
MOST_FAILURES = 3
WORTH_TELLING = 10.0
"""Seconds left that are worth a line."""
BARS = "▁▂▃▄▅▆▇█"
ARROW = " → "
_SECONDS = re.compile(r", \d+ s$")
BEFORE = ("queued", "compiling", "waiting")
STATUS_STYLES = {"running": "cyan", "done": "green", "stopped": "yellow", "refused": "red"}


def show(looks: Iterable[JobProgress], console: Console) -> JobProgress:
    """Show a job until it ends; returns how it ended."""
    if console.is_terminal and console.encoding.lower().startswith("utf"):
        return _show_live(looks, console)
    return _show_plain(looks, console)


def _show_live(looks: Iterable[JobProgress], console: Console) -> JobProgress:
    last, time_left = None, TimeLeft()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for last in looks:
            left = time_left.seconds(last, time.monotonic())
            live.update(screen(last, console.width, left), refresh=True)
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
    for report in after.history[known:]:
        found += [round_line(report, after.view.rounds), *(f"  {line}" for line in report.failures)]
    if found and left and left >= WORTH_TELLING:
        found.append(f"  {describe_time_left(left)}")
    status = status_line(after.view)
    # A step that only takes longer is no news.
    if before is None or _SECONDS.sub("", status_line(before.view)) != _SECONDS.sub("", status):
        found.append(status)
    return found


def round_line(report: RoundReport, rounds: int) -> str:
    """A finished round."""
    quality = "".join(f" {name} {value:.3f}" for name, value in report.quality.items() if isfinite(value))
    return (
        f"round {report.round}/{rounds} accuracy {percent(report.accuracy)} loss {number(report.loss)} "
        f"visits {report.visits} failed {report.lost} {report.traffic / 1e6:.2f} MB {report.seconds:.1f} s{quality}"
    )


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


def percent(share: float) -> str:
    """A share for people; a dash where there is none."""
    return f"{share:.1%}".replace("%", " %") if isfinite(share) else "-"


def number(value: float) -> str:
    """A number for people; a dash where there is none."""
    return f"{value:.4f}" if isfinite(value) else "-"


# --- the live view


def screen(progress: JobProgress, width: int, left: float | None = None) -> RenderableType:
    """The whole view; `left` is how many seconds it will still take, where that is known."""
    view = progress.view
    parts: list[RenderableType] = [
        _header(view),
        _progress(progress, left),
        _doing_now(progress),
        _figures(progress),
        Text(),
    ]
    if view.tours:
        parts.append(_tours(view.tours, width))
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


def _progress(progress: JobProgress, left: float | None) -> Table:
    view = progress.view
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    bar = ProgressBar(total=view.rounds, completed=rounds_done(progress), pulse=view.status in BEFORE)
    shown = min(view.round + (view.status == "running"), view.rounds)
    grid.add_row(bar, Text.assemble(f"round {shown}/{view.rounds}", (f"  {describe_time_left(left)}".rstrip(), "dim")))
    return grid


def _doing_now(progress: JobProgress) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(no_wrap=True)
    doing = Text(_doing(progress.view).removeprefix(", "), style="dim")
    grid.add_row(doing, Text(trend([report.accuracy for report in progress.history[-30:]]), style="cyan"))
    return grid


def _figures(progress: JobProgress) -> Text:
    if not progress.history:
        return Text("no round is finished yet", style="dim")
    last = progress.history[-1]
    megabytes = sum(report.traffic for report in progress.history) / 1e6
    figures = [
        ("accuracy", percent(last.accuracy)),
        ("loss", number(last.loss)),
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


def _tours(tours: tuple[TourView, ...], width: int) -> Table:
    site = min(16, max(4, *(len(tour.site) for tour in tours)))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", expand=True)
    table.add_column("site", width=site, no_wrap=True, overflow="ellipsis")
    table.add_column("route", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("hop", justify="right", no_wrap=True, min_width=5)
    table.add_column("this visit", no_wrap=True, width=12)
    shown = sorted(tours, key=lambda tour: tour.done)[:MOST_TOURS]
    for tour in shown:
        hop = f"{min(tour.hop + (not tour.done), len(tour.hops))}/{len(tour.hops)}"
        table.add_row(Text(tour.site), route(tour, width - site - 25), hop, _visit(tour))
    if len(tours) > len(shown):
        table.add_row("", Text(f"and {len(tours) - len(shown)} more tours", style="dim"))
    return table


def _visit(tour: TourView) -> RenderableType:
    if tour.done:
        return Text("arrived", style="green")
    return ProgressBar(total=max(tour.steps, 1), completed=min(tour.step, tour.steps), width=12)


def route(tour: TourView, room: int) -> Text:
    """The way of the model, with the device that it is at; a long way is cut so that the device stays in sight."""
    devices = list(tour.hops)
    if tour.device and tour.hop < len(devices):
        devices[tour.hop] = tour.device  # a spare may stand in
    first = 0
    while first < tour.hop and first < len(devices) - 1 and len(ARROW.join(devices[first : tour.hop + 2])) + 4 > room:
        first += 1
    text = Text("…" + ARROW if first else "")
    for at, device in enumerate(devices[first:], first):
        style = "dim" if at < tour.hop else "bold reverse cyan" if at == tour.hop and tour.device else ""
        text.append(ARROW if at > first else "", "dim").append(device, style)
    return text


def _failures(history: tuple[RoundReport, ...]) -> list[RenderableType]:
    texts = [f"round {report.round}: {line}" for report in history for line in report.failures]
    if not texts:
        return []
    head = Text(f"\nvisits that failed: {sum(report.lost for report in history)}", style="yellow")
    newest = texts[-MOST_FAILURES:]
    return [head, *(Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis") for line in newest)]


# --- afterwards


def result_table(progress: JobProgress) -> Table:
    """Every round of a job."""
    table = Table(
        title=Text(f"{progress.view.job}: {progress.view.status}"),
        title_justify="left",
        title_style="bold",
        caption=_arrangements(progress.history),
        caption_justify="left",
    )
    for name in ("round", "accuracy", "loss", "VTS", "visits", "failed", "MB", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for it in progress.history:
        table.add_row(
            str(it.round),
            percent(it.accuracy),
            number(it.loss),
            _quality(it, "vts"),
            str(it.visits),
            str(it.lost),
            f"{it.traffic / 1e6:.2f}",
            f"{it.seconds:.1f}",
        )
    return table


def _arrangements(history: tuple[RoundReport, ...]) -> str | None:
    """What the arrangements were like, over all rounds; each round's own stand in the lines of a plain terminal."""
    found = []
    for measure, name in MEASURES.items():
        values = [value for it in history if isfinite(value := it.quality.get(measure, nan))]
        found += [f"{name} {sum(values) / len(values):.3f}"] if values else []
    return f"arrangements, mean over rounds: {', '.join(found)}" if found else None


def job_table(views: Iterable[JobView]) -> Table:
    """All jobs of a coordinator."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("job", "status", "round", "accuracy", "strategy", "model"):
        justify: JustifyMethod = "right" if name in ("round", "accuracy") else "left"
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify=justify)
    for it in views:
        status = Text(it.status, style=STATUS_STYLES.get(it.status, "yellow"))
        shown = (Text(it.strategy), Text(it.model))
        table.add_row(Text(it.job), status, f"{it.round}/{it.rounds}", percent(it.accuracy), *shown)
    return table
