"""Pictures of simulations: one line each, drawn from the tables in their result folders."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from coordinator.results.measures import MEASURES
from coordinator.results.task_figures import axis_words, of_rows
from sojourn.errors import ConfigError
from sojourn.protocol.figure_names import SHARES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from coordinator.results.folder import Rows

INK, PAPER, QUIET = "#1f2933", "#ffffff", "#9aa5b1"
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
ACCURACY, QUALITY, PARTICIPATION = "accuracy.png", "quality.png", "participation.png"
ANSWERS = "answers.png"
WIDTHS = {ACCURACY: 11.5, QUALITY: 7.0, PARTICIPATION: 9.0, ANSWERS: 9.0}
"""In inches; a page shows them at one scale, so that their letters are of one size."""
NAMED = 24
"""More devices than this are not named below their bars."""
QUANTITIES = 3
"""As many quantities are drawn side by side."""
BINS = 40
WIDE = 30.0
"""Figures that differ by more than this factor are drawn by their logarithm."""
COUNTED = "covered"
"""The one measure that is a number of classes, and no share."""


def course_plot(groups: Mapping[str, Sequence[Rows]], path: Path, figure: str = "accuracy") -> None:
    """Write the picture of `course_figure`."""
    _save(course_figure(groups, figure), path)


def course_figure(groups: Mapping[str, Sequence[Rows]], name: str = "accuracy") -> Any:
    """A figure by round, by simulated time and by bytes: a colour for each group, and a line for each run in it.

    Several runs of a group are drawn thin, and their mean as far as all of them went is drawn over them.
    """
    figure, axes = _figure(3, WIDTHS[ACCURACY])
    longest = max((float(row["clock"]) for runs in groups.values() for rows in runs for row in rows), default=0.0)
    per, unit = next((per, unit) for per, unit in UNITS if longest < 300 * per or unit == "hours")
    for (group, runs), colour in zip(groups.items(), _colours(len(groups)), strict=True):
        curves = [_curve(rows, per, name) for rows in runs if rows]
        for curve in curves if len(curves) > 1 else ():
            for axis, across in zip(axes, curve[1:], strict=True):
                axis.plot(across, curve[0], color=colour, linewidth=0.8, alpha=0.35)
        # Each number of the mean's curve is the mean of the runs' numbers in the same round.
        steps = [zip(*each, strict=True) for each in zip(*(zip(*curve, strict=True) for curve in curves), strict=False)]
        rounds = [[fmean(values) for values in step] for step in steps]
        for axis, at in zip(axes, (1, 2, 3), strict=True):
            axis.plot(
                [step[at] for step in rounds],
                [step[0] for step in rounds],
                color=colour,
                label=group,
                linewidth=1.8,
                marker="o" if len(rounds) < 2 else None,
            )
    for axis, words in zip(axes, ("round", f"{unit} on the fleet's clock", "MB over MQTT"), strict=True):
        axis.set_xlabel(words)
        _scale(axis, name, [value for runs in groups.values() for rows in runs for value in of_rows(rows, name)])
    axes[0].set_ylabel(axis_words(name))
    _whole(axes[0].xaxis)
    if len(groups) > 1:
        _legend_beside(axes[-1])
    return figure


def _scale(axis: Any, name: str, values: Sequence[float]) -> None:
    """Shares from 0 to 100 %; others as they are, by their logarithm where they differ by far."""
    known = [value for value in values if isfinite(value)]
    if name in SHARES:
        axis.set_ylim(0, 100)
        axis.yaxis.set_major_formatter("{x:.0f} %")
    elif known and min(known) > 0 and max(known) > WIDE * min(known):
        axis.set_yscale("log")


def _curve(rows: Rows, per: float, name: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """A figure, shares in percent, and where it stands by round, by time and by bytes."""
    megabytes = _added([float(row["bytes"]) / 1e6 for row in rows])
    clock = [float(row["clock"]) / per for row in rows]
    times = 100 if name in SHARES else 1
    return [times * each for each in of_rows(rows, name)], [float(row["round"]) for row in rows], clock, megabytes


def quality_plot(rows: Rows, path: Path) -> bool:
    """The measures of each round's arrangement; False where there are none."""
    found = {name: [float(row[name] or "nan") for row in rows] for name in MEASURES if name != COUNTED}
    found = {name: values for name, values in found.items() if any(map(isfinite, values))}
    if not found:
        return False
    figure, (axis,) = _figure(1, WIDTHS[QUALITY])
    for (name, values), colour in zip(found.items(), _colours(len(found)), strict=True):
        axis.plot(
            [int(row["round"]) for row in rows],
            values,
            color=colour,
            label=MEASURES[name],
            linewidth=1.8,
            marker="o" if len(rows) < 2 else None,
        )
    axis.set_xlabel("round")
    axis.set_ylabel("from 0 to 1")
    axis.set_ylim(min(0.0, *(value for values in found.values() for value in values if isfinite(value))), 1.0)
    _whole(axis.xaxis)
    _legend_beside(axis)
    _save(figure, path)
    return True


def participation_plot(visits: Rows, devices: Sequence[str], path: Path) -> None:
    """Write the picture of `participation_figure`."""
    _save(participation_figure(visits, devices), path)


def participation_figure(visits: Rows, devices: Sequence[str]) -> Any:
    """How often each device was visited, and how often that came to nothing."""
    done = Counter(row["device"] for row in visits if row["status"] == "done")
    lost = Counter(row["device"] for row in visits if row["status"] != "done")
    order = sorted(devices, key=lambda device: (-done[device], device))
    figure, (axis,) = _figure(1, WIDTHS[PARTICIPATION])
    well = [done[device] for device in order]
    _heights(axis, well, [0] * len(order), COLOURS[0], "done")
    _heights(axis, [lost[device] for device in order], well, COLOURS[1], "lost")
    axis.set_xlabel("devices, most visited first")
    axis.set_ylabel("visits")
    axis.set_xlim(0.5, max(len(order), 1) + 0.5)
    _whole(axis.xaxis)
    _whole(axis.yaxis)
    if len(order) <= NAMED:
        axis.set_xticks(list(range(1, len(order) + 1)), order, rotation=45, ha="right")
    _legend_beside(axis)
    return figure


def _heights(axis: Any, heights: Sequence[int], below: Sequence[int], colour: str, label: str) -> None:
    """A bar for each device, above what is below it; of many, one outline for all: a thousand bars take seconds."""
    if len(heights) <= NAMED:
        axis.bar(range(1, len(heights) + 1), heights, bottom=below, color=colour, label=label, width=0.9)
        return
    tops = [low + height for low, height in zip(below, heights, strict=True)]
    edges = [place + 0.5 for place in range(len(heights) + 1)]
    axis.stairs(tops, edges, baseline=below, fill=True, color=colour, label=label)


def answers_plot(rows: Rows, path: Path) -> str:
    """What the model answers for test samples: predicted values by true ones, or scores of normal and faulty samples.

    Returns what is to be seen; nothing where the rows are of neither.
    """
    if rows and "score" in rows[0]:
        return _scores_plot(rows, path)
    names = list(dict.fromkeys(row["quantity"] for row in rows))[:QUANTITIES]
    if not names:
        return ""
    figure, axes = _figure(len(names), WIDTHS[ANSWERS] if len(names) > 1 else 5.0)
    for axis, name in zip(axes, names, strict=True):
        mine = [row for row in rows if row["quantity"] == name]
        true, predicted = ([float(row[key]) for row in mine] for key in ("true", "predicted"))
        ends = [min(true), max(true)]
        axis.plot(ends, ends, color=QUIET, linewidth=1.2)
        axis.scatter(true, predicted, s=9, color=COLOURS[0], alpha=0.5, linewidths=0)
        axis.set_xlabel(f"{name}, true")
    axes[0].set_ylabel("predicted")
    _save(figure, path)
    return "Predicted by true values of test samples: on the line both are the same"


def _scores_plot(rows: Rows, path: Path) -> str:
    from math import log10  # noqa: PLC0415  # scores differ by powers of ten

    figure, (axis,) = _figure(1, 6.0)
    found = {"normal": [row for row in rows if row["faulty"] == "0"]}
    found["faulty"] = [row for row in rows if row["faulty"] == "1"]
    scores = {kind: [log10(max(float(row["score"]), 1e-30)) for row in mine] for kind, mine in found.items() if mine}
    ends = [end(each for mine in scores.values() for each in mine) for end in (min, max)]
    edges = [ends[0] + (ends[1] - ends[0] or 1.0) * at / BINS for at in range(BINS + 1)]
    for (kind, mine), colour in zip(scores.items(), COLOURS, strict=False):
        weights = [100 / len(mine)] * len(mine)
        axis.hist(mine, bins=edges, weights=weights, color=colour, alpha=0.6, label=f"{kind} ({len(mine)})")
    axis.set_xlabel("score")
    axis.xaxis.set_major_formatter(lambda x, _: f"{10**x:.2g}")
    axis.yaxis.set_major_formatter("{x:.0f} %")
    axis.set_ylabel("of the samples")
    _legend_beside(axis)
    _save(figure, path)
    return "Scores of test samples: the further apart, the better are faults found"


def _whole(axis: Any) -> None:
    """Ticks at whole numbers: there is no round 2.5."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  # only where pictures are drawn

    axis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def _legend_beside(axis: Any) -> None:
    """A legend that covers nothing."""
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _figure(columns: int, width: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # only where pictures are drawn
    except ImportError as error:
        raise ConfigError('pictures need matplotlib: pip install "sojourn[sim]"') from error
    figure = Figure(figsize=(width, 3.8), layout="constrained", facecolor=PAPER)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.grid(visible=True, color=QUIET, alpha=0.25, linewidth=0.8)
        axis.tick_params(colors=INK)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _added(numbers: Sequence[float]) -> list[float]:
    total, sums = 0.0, []
    for number in numbers:
        total += number
        sums.append(total)
    return sums
