"""Plots of simulations, drawn from the tables in their result folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from coordinator.results.folder import Rows
from coordinator.results.job_metrics import MEASURES, axis_words, of_rows
from sojourn.errors import require_extra
from sojourn.protocol.metric_names import DIRECTIONS, SHARES

INK, PAPER, QUIET = "#1f2933", "#ffffff", "#9aa5b1"
COLOURS = ("#0060a8", "#b23c00", "#00734f", "#8a3a86", "#6d5a00", "#3a3f45", "#b0004f", "#00707a")
"""Colours that are distinguishable with colour blindness; fleet_web/pictures.css has the same."""
ACCURACY, QUALITY, PARTICIPATION = "accuracy.png", "quality.png", "participation.png"
ANSWERS = "answers.png"
WIDTHS = {ACCURACY: 11.5, QUALITY: 7.0, PARTICIPATION: 9.0, ANSWERS: 9.0}
"""In inches; a page shows all at one scale, so their text has one size."""
NAMED = 24
"""The maximum number of devices that are named below their bars."""
MAX_QUANTITIES = 3
"""The maximum number of quantities that are drawn side by side."""
BINS = 40
WIDE = 30.0
"""Positive values whose range exceeds this factor are drawn on a logarithmic axis."""
COUNTED = "covered"
"""The only measure that is a number of classes and not a share."""


def course_plot(groups: Mapping[str, Sequence[Rows]], path: Path, name: str = "accuracy") -> None:
    """Write the plot of `course_chart`."""
    _save(course_chart(groups, name), path)


def course_chart(groups: Mapping[str, Sequence[Rows]], name: str = "accuracy") -> Any:
    """Plot a metric by round, by simulated time and by bytes: one colour per group, and one line per run.

    Several runs of a group are thin lines, with their mean over the common rounds on top.
    """
    chart, axes = _new_chart(3, WIDTHS[ACCURACY])
    longest = max((float(row["clock"]) for runs in groups.values() for rows in runs for row in rows), default=0.0)
    per, unit = time_unit(longest)
    for (group, runs), colour in zip(groups.items(), _colours(len(groups)), strict=True):
        curves = [_curve(rows, per, name) for rows in runs if rows]
        for curve in curves if len(curves) > 1 else ():
            for axis, across in zip(axes, curve[1:], strict=True):
                axis.plot(across, curve[0], color=colour, linewidth=0.8, alpha=0.35)
        # Each value of the mean curve is the mean of the runs' values in the same round.
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
        _legend_outside(axes[-1])
    return chart


def _scale(axis: Any, name: str, values: Sequence[float]) -> None:
    """Set the axis of shares to 0 to 100 %; use a logarithmic axis for others with a large range."""
    if name in SHARES:
        axis.set_ylim(0, 100)
        axis.yaxis.set_major_formatter("{x:.0f} %")
    elif is_logarithmic(name, values):
        axis.set_yscale("log")


def is_logarithmic(name: str, values: Iterable[float]) -> bool:
    """Whether the axis of these values is logarithmic: for metrics with a large range, except shares and measures."""
    known = [value for value in values if isfinite(value)]
    return name in DIRECTIONS and name not in SHARES and bool(known) and 0 < WIDE * min(known) < max(known)


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the length in seconds and the name of a suitable unit for a time."""
    units = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
    return next(((per, unit) for per, unit in units if seconds < 300 * per), (86_400.0, "days"))


def _curve(rows: Rows, per: float, name: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return a metric (shares in percent), and its positions by round, time and bytes."""
    megabytes = list(accumulate(float(row["bytes"]) / 1e6 for row in rows))
    clock = [float(row["clock"]) / per for row in rows]
    times = 100 if name in SHARES else 1
    return [times * each for each in of_rows(rows, name)], [float(row["round"]) for row in rows], clock, megabytes


def quality_plot(rows: Rows, path: Path) -> bool:
    """Write a plot of the measures of each round's arrangement; False if there are none."""
    found = {name: [float(row[name] or "nan") for row in rows] for name in MEASURES if name != COUNTED}
    found = {name: values for name, values in found.items() if any(map(isfinite, values))}
    if not found:
        return False
    chart, (axis,) = _new_chart(1, WIDTHS[QUALITY])
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
    _legend_outside(axis)
    _save(chart, path)
    return True


def participation_plot(visits: Rows, devices: Sequence[str], path: Path) -> None:
    """Write the plot of `participation_chart`."""
    _save(participation_chart(visits, devices), path)


def participation_chart(visits: Rows, devices: Sequence[str]) -> Any:
    """Plot how often each device was visited, and how often a visit failed."""
    done = Counter(row["device"] for row in visits if row["status"] == "done")
    lost = Counter(row["device"] for row in visits if row["status"] != "done")
    order = sorted(devices, key=lambda device: (-done[device], device))
    chart, (axis,) = _new_chart(1, WIDTHS[PARTICIPATION])
    completed = [done[device] for device in order]
    _heights(axis, completed, [0] * len(order), COLOURS[0], "done")
    _heights(axis, [lost[device] for device in order], completed, COLOURS[1], "lost")
    axis.set_xlabel("devices, most visited first")
    axis.set_ylabel("visits")
    axis.set_xlim(0.5, max(len(order), 1) + 0.5)
    _whole(axis.xaxis)
    _whole(axis.yaxis)
    if len(order) <= NAMED:
        axis.set_xticks(list(range(1, len(order) + 1)), order, rotation=45, ha="right")
    _legend_outside(axis)
    return chart


def _heights(axis: Any, heights: Sequence[int], below: Sequence[int], colour: str, label: str) -> None:
    """Draw a bar for each device; with many devices one outline, because a thousand bars take seconds."""
    if len(heights) <= NAMED:
        axis.bar(range(1, len(heights) + 1), heights, bottom=below, color=colour, label=label, width=0.9)
        return
    tops = [low + height for low, height in zip(below, heights, strict=True)]
    edges = [place + 0.5 for place in range(len(heights) + 1)]
    axis.stairs(tops, edges, baseline=below, fill=True, color=colour, label=label)


def answers_plot(rows: Rows, path: Path) -> str:
    """Plot predictions for test samples: predicted by true values, or scores of normal and faulty samples.

    Returns a description; empty if the rows are neither.
    """
    if rows and "score" in rows[0]:
        return _scores_plot(rows, path)
    names = list(dict.fromkeys(row["quantity"] for row in rows))[:MAX_QUANTITIES]
    if not names:
        return ""
    chart, axes = _new_chart(len(names), WIDTHS[ANSWERS] if len(names) > 1 else 5.0)
    for axis, name in zip(axes, names, strict=True):
        mine = [row for row in rows if row["quantity"] == name]
        true, predicted = ([float(row[key]) for row in mine] for key in ("true", "predicted"))
        ends = [min(true), max(true)]
        axis.plot(ends, ends, color=QUIET, linewidth=1.2)
        axis.scatter(true, predicted, s=9, color=COLOURS[0], alpha=0.5, linewidths=0)
        axis.set_xlabel(f"{name}, true")
    axes[0].set_ylabel("predicted")
    _save(chart, path)
    return "Predicted by true values of test samples: on the line they are equal"


def _scores_plot(rows: Rows, path: Path) -> str:
    from math import log10  # noqa: PLC0415  # scores differ by powers of ten

    chart, (axis,) = _new_chart(1, 6.0)
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
    _legend_outside(axis)
    _save(chart, path)
    return "Scores of test samples: the further apart, the better faults are detected"


def _whole(axis: Any) -> None:
    """Set ticks at integers: there is no round 2.5."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  # only to draw

    axis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))


def _legend_outside(axis: Any) -> None:
    """Draw the legend next to the plot."""
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _new_chart(columns: int, width: float) -> tuple[Any, Any]:
    require_extra("sim", "a picture")
    from matplotlib.figure import Figure  # noqa: PLC0415  # only to draw

    chart = Figure(figsize=(width, 3.8), layout="constrained", facecolor=PAPER)
    axes = chart.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.grid(visible=True, color=QUIET, alpha=0.25, linewidth=0.8)
        axis.tick_params(colors=INK)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return chart, axes


def _save(chart: Any, path: Path) -> None:
    chart.savefig(path, dpi=130)


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]
