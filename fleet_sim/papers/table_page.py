"""The page of a table, in Markdown, made of what its folder keeps: `README.md` beside the job files."""

from __future__ import annotations

from math import isfinite, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from coordinator.jobs.goal import goal_of
from coordinator.results.plots import COLOURS, course_plot
from coordinator.results.task_figures import KINDS, figure_shown
from fleet_sim.console.comparison_report import rounds_to
from fleet_sim.papers.confidence import half_width
from fleet_sim.papers.kept_results import COURSES, RUNS
from fleet_sim.papers.local_training import differences_told
from fleet_sim.papers.paired_differences import difference_lines
from sojourn.figures import clock_of
from sojourn.protocol.figure_names import MAIN, OWN, SHARES, VOTE, belongs_to, better, called
from sojourn.store.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from coordinator.jobs.goal import Goal
    from fleet_sim.papers.kept_results import KeptRun
    from fleet_sim.papers.paper_table import PaperTable

PAGE, PICTURE = "README.md", "courses.png"
LAST = 10
"""Rounds go up and down; the mean of so many says more than one."""
MOST_CURVES = len(COLOURS)
"""More than there are colours nobody tells apart: of a longer table the first ones are shown."""


def write_page(
    folder: Path,
    table: PaperTable,
    methods: Mapping[str, Mapping[str, Any]],
    runs: Mapping[tuple[str, int], KeptRun],
) -> None:
    """Write the page anew, and the picture where there is a course to see.

    methods: how the devices of each train, in the order of the table.
    """
    there = {name: [it for (method, _), it in sorted(runs.items()) if method == name] for name in methods}
    done = {name: kept for name, kept in there.items() if kept}
    missing = [name for name in methods if name not in done]
    longest = max((len(it.course) for kept in done.values() for it in kept), default=0)
    parts = [f"# {table.title}", _made_by(folder.name), table.about.strip()]
    parts.append(differences_told({name: methods[name] for name in done}))
    if done:
        parts.append(_markdown(_lines(done, table)))
        parts.append(_whose([it for kept in done.values() for it in kept]))
        if longest > 1:
            figure, shown = next(iter(done.values()))[0].figure, list(done)[:MOST_CURVES]
            course_plot({name: [it.course for it in done[name]] for name in shown}, folder / PICTURE, figure)
            which = "every method" if len(shown) == len(done) else f"the first {len(shown)} methods"
            parts.append(f"![{called(figure)} of {which}, round by round]({PICTURE})")
        if differences := difference_lines(table.pairs, done, LAST):
            parts.append(_markdown(differences))
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.")
    parts += [table.findings.strip(), _when(done)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_atomically(folder / PAGE, text.encode(), sync=False)


def interval_shown(name: str, values: Sequence[float]) -> str:
    """The mean of several runs with the half width of its 95 % confidence interval; a single run as it is."""
    known = [value for value in values if isfinite(value)]
    if len(known) < 2:
        return figure_shown(name, known[0] if known else nan)
    half = half_width(known)
    if name in SHARES:
        return f"{100 * fmean(known):.1f} ± {100 * half:.1f} %"
    return f"{fmean(known):.3g} ± {half:.2g}"


def _lines(done: Mapping[str, Sequence[KeptRun]], table: PaperTable) -> list[dict[str, str]]:
    """The rows of the table: one for each method."""
    runs = [it for kept in done.values() for it in kept]
    figure = runs[0].figure
    kind = next(kind for kind in KINDS if MAIN[kind] == figure)
    reach = None if table.reach is None else goal_of(table.reach, kind, "reach")
    with_others = _has_others(runs)
    several, common = any(len(it.course) > 1 for it in runs), min(len(it.course) for it in runs)
    lines = []
    for name, kept in done.items():
        line = {"method": name, "seeds": str(len(kept))}
        line[called(figure)] = interval_shown(figure, [it.values[-1] for it in kept])
        for begins, values in (_others(kept) if with_others else {}).items():
            line[called(begins + figure)] = interval_shown(figure, values)
        if several and common >= LAST:
            means = [fmean(it.values[common - LAST : common]) for it in kept]
            line[f"mean of rounds {common - LAST + 1} to {common}"] = interval_shown(figure, means)
        if several:
            line["best"] = interval_shown(figure, [_best(it) for it in kept])
        if reach is not None:
            row = f", {table.in_a_row} in a row" if table.in_a_row > 1 else ""
            line[f"first round of {_target(reach)}{row}"] = _firsts(kept, reach, table.in_a_row)
        line["MB"] = f"{fmean(sum(float(row['bytes']) for row in it.course) / 1e6 for it in kept):,.1f}"
        line["fleet's clock"] = clock_of(fmean(float(it.course[-1]["clock"]) for it in kept))
        if table.paper:
            line["paper"] = table.paper.get(name, "")
        lines.append(line)
    return lines


def _others(kept: Sequence[KeptRun]) -> dict[str, list[float]]:
    """What models other than the job's one came to, by how their figures' names begin."""
    return {OWN: [it.own for it in kept], VOTE: [it.vote for it in kept]}


def _has_others(runs: Iterable[KeptRun]) -> bool:
    return any(isfinite(value) for it in runs for value in (it.own, it.vote))


def _whose(runs: Sequence[KeptRun]) -> str:
    """Which model a number belongs to, where some methods end with others than one."""
    if not _has_others(runs):
        return ""
    figure = runs[0].figure
    told = " ".join(f"*{called(begins + figure)}*: {belongs_to(begins + figure)}." for begins in (OWN, VOTE))
    return f"*{called(figure)}*: the job's one model, on the job's test set. {told}"


def _best(it: KeptRun) -> float:
    found = nan
    for value in it.values:
        if not isfinite(found) or better(it.figure, value, found):
            found = value
    return found


def _target(reach: Goal) -> str:
    return figure_shown(reach.figure, reach.value)


def _firsts(kept: Sequence[KeptRun], reach: Goal, in_a_row: int) -> str:
    """The round of each run, and the mean where all got there."""
    firsts = [rounds_to(it.course, reach, in_a_row) for it in kept]
    mean = [f"mean {fmean(first or 0 for first in firsts):.1f}"] if len(kept) > 1 and None not in firsts else []
    return "; ".join([" / ".join("-" if first is None else str(first) for first in firsts), *mean])


def _markdown(lines: Sequence[Mapping[str, str]]) -> str:
    head = list(lines[0])
    rows = [head, ["---"] * len(head), *([line[key] for key in head] for line in lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _made_by(name: str) -> str:
    return (
        f"Made by `sojourn papers {name}` of the job files beside it; [{RUNS}]({RUNS}) and [{COURSES}]({COURSES}) keep "
        "what every run came to. Means over several seeds have the half width of their 95 % confidence interval."
    )


def _when(done: Mapping[str, Sequence[KeptRun]]) -> str:
    """When and with what the runs were made, and what they cost."""
    runs = [it for kept in done.values() for it in kept]
    if not runs:
        return ""
    dates, versions = sorted({it.date for it in runs}), sorted({it.version for it in runs})
    seconds = sum(it.seconds for it in runs)
    cost = f" They took {clock_of(seconds)}, beside other work." if seconds else ""
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"Runs of {days}, version {', '.join(versions)}.{cost}"
