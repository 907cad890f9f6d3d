"""The page of a paper's table: means with confidence intervals, paired differences, differences in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from coordinator.jobs.goal import Goal, goal_of
from coordinator.results.job_metrics import KINDS, metric_shown
from coordinator.results.plots import COLOURS, course_plot
from fleet_sim.console.comparing import training_of
from fleet_sim.console.comparison_report import different, rounds_to
from fleet_sim.console.simulating import read
from fleet_sim.papers.paper_table import COURSES, RUNS, KeptRun, PaperTable
from sojourn.protocol.metric_names import MAIN, OWN, SHARES, VOTE, belongs_to, better, called
from sojourn.store.files import write_atomically
from sojourn.text import clock_of

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 0.975 quantiles of Student's t for 1, 2, ... degrees of freedom; beyond them, the normal quantile."""


def half_width(values: Sequence[float]) -> float:
    """Return half of the 95 % confidence interval of the mean; NaN for a single value."""
    free = len(values) - 1
    if free < 1:
        return float("nan")
    return (STUDENT[free - 1] if free <= len(STUDENT) else 1.96) * stdev(values) / sqrt(len(values))


# Paired differences of two methods per seed. With one seed, two methods have the same devices, data and initial model.
# The common random effects cancel in the difference, so it is more precise than two means with an interval each.


def difference_lines(
    pairs: Iterable[tuple[str, str]], done: Mapping[str, Sequence[KeptRun]], last: int
) -> list[dict[str, str]]:
    """Return a row per pair with a common seed: the first method minus the second, mean of the `last` rounds."""
    lines = []
    for first, second in pairs:
        others = {it.seed: it for it in done.get(second, ())}
        both = [(it, others[it.seed]) for it in done.get(first, ()) if it.seed in others]
        found = [value for it, other in both if isfinite(value := _difference(it, other, last))]
        if not found:
            continue
        of_shares = both[0][0].metric in SHARES
        lines.append(
            {
                "first minus second": f"{first} - {second}",
                "seeds": str(len(found)),
                f"mean of the last {last} rounds": _shown(found, of_shares=of_shares),
                "per seed": ", ".join(_signed(value, of_shares=of_shares) for value in found),
            }
        )
    return lines


def _difference(it: KeptRun, other: KeptRun, last: int) -> float:
    """Return the difference over the last rounds that both have."""
    common = min(len(it.course), len(other.course))
    if not common:
        return float("nan")
    begin = max(0, common - last)
    return fmean(it.values[begin:common]) - fmean(other.values[begin:common])


def _shown(values: Sequence[float], *, of_shares: bool) -> str:
    mean, unit = _signed(fmean(values), of_shares=of_shares), " points" if of_shares else ""
    half = f" ± {_plain(half_width(values), of_shares=of_shares)}" if len(values) > 1 else ""
    return f"{mean}{half}{unit}"


def _signed(value: float, *, of_shares: bool) -> str:
    return f"{'+' if value >= 0 else '-'} {_plain(abs(value), of_shares=of_shares)}"


def _plain(value: float, *, of_shares: bool) -> str:
    return f"{100 * value:.1f}" if of_shares else f"{value:.2g}"


def training_by_method(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return each method's training settings: the defaults of its strategy, overridden by its job file."""
    return {file.stem: training_of(read(file, {})) for file in files}


def describe_training_differences(training: Mapping[str, Mapping[str, Any]]) -> str:
    """List the methods whose training settings differ from the majority's; empty if there are none.

    A strategy may set its own momentum, which a job file that sets only `lr` keeps.
    """
    apart = different(training)
    keys = next(iter(apart.values()), {})
    differences = [_difference_text(key, {method: values[key] for method, values in apart.items()}) for key in keys]
    return f"**Training settings differ:** {'; '.join(differences)}." if differences else ""


def _difference_text(key: str, values: Mapping[str, str]) -> str:
    (usual, _), *others = Counter(values.values()).most_common()
    lists = [f"{other} in {', '.join(it for it in values if values[it] == other)}" for other, _ in others]
    return f"`{key}` is {', '.join(lists)}, and {usual} for the others"


PAGE, PICTURE = "README.md", "courses.png"
LAST = 10
"""The number of last rounds averaged, because metrics fluctuate."""
MAX_CURVES = len(COLOURS)
"""Maximum number of curves, limited by the distinguishable colours; of a longer table the first ones are drawn."""


def write_page(
    folder: Path,
    table: PaperTable,
    methods: Mapping[str, Mapping[str, Any]],
    runs: Mapping[tuple[str, int], KeptRun],
) -> None:
    """Write the page, and the image if there are several rounds.

    methods: the training settings of each method, in the table's order.
    """
    there = {name: [it for (method, _), it in sorted(runs.items()) if method == name] for name in methods}
    done = {name: kept for name, kept in there.items() if kept}
    missing = [name for name in methods if name not in done]
    longest = max((len(it.course) for kept in done.values() for it in kept), default=0)
    parts = [f"# {table.title}", _made_by(folder.name), table.about.strip()]
    parts.append(describe_training_differences({name: methods[name] for name in done}))
    if done:
        parts.append(_markdown(_lines(done, table)))
        parts.append(_model_legend([it for kept in done.values() for it in kept]))
        if longest > 1:
            metric, shown = next(iter(done.values()))[0].metric, list(done)[:MAX_CURVES]
            course_plot({name: [it.course for it in done[name]] for name in shown}, folder / PICTURE, metric)
            which = "all methods" if len(shown) == len(done) else f"the first {len(shown)} methods"
            parts.append(f"![{called(metric)} of {which}, round by round]({PICTURE})")
        if differences := difference_lines(table.pairs, done, LAST):
            parts.append(_markdown(differences))
    if missing:
        parts.append(f"Not run: {', '.join(missing)}.")
    parts += [table.findings.strip(), _when(done)]
    text = "\n\n".join(part for part in parts if part) + "\n"
    write_atomically(folder / PAGE, text.encode(), sync=False)


def interval_shown(name: str, values: Sequence[float]) -> str:
    """Return the mean of several runs with half of its 95 % confidence interval; a single run without."""
    known = [value for value in values if isfinite(value)]
    if len(known) < 2:
        return metric_shown(name, known[0] if known else nan)
    half = half_width(known)
    if name in SHARES:
        return f"{100 * fmean(known):.1f} ± {100 * half:.1f} %"
    return f"{fmean(known):.3g} ± {half:.2g}"


def _lines(done: Mapping[str, Sequence[KeptRun]], table: PaperTable) -> list[dict[str, str]]:
    """Return the rows of the table, one per method."""
    runs = [it for kept in done.values() for it in kept]
    metric = runs[0].metric
    kind = next(kind for kind in KINDS if MAIN[kind] == metric)
    reach = None if table.reach is None else goal_of(table.reach, kind, "reach")
    with_others = _has_others(runs)
    several, common = any(len(it.course) > 1 for it in runs), min(len(it.course) for it in runs)
    lines = []
    for name, kept in done.items():
        line = {"method": name, "seeds": str(len(kept))}
        line[called(metric)] = interval_shown(metric, [it.values[-1] for it in kept])
        for begins, values in (_other_metrics(kept) if with_others else {}).items():
            line[called(begins + metric)] = interval_shown(metric, values)
        if several and common >= LAST:
            means = [fmean(it.values[common - LAST : common]) for it in kept]
            line[f"mean of rounds {common - LAST + 1} to {common}"] = interval_shown(metric, means)
        if several:
            line["best"] = interval_shown(metric, [_best(it) for it in kept])
        if reach is not None:
            row = f", {table.in_a_row} consecutive" if table.in_a_row > 1 else ""
            line[f"first round of {_target(reach)}{row}"] = _firsts(kept, reach, table.in_a_row)
        line["MB"] = f"{fmean(sum(float(row['bytes']) for row in it.course) / 1e6 for it in kept):,.1f}"
        line["simulated time"] = clock_of(fmean(float(it.course[-1]["clock"]) for it in kept))
        if table.paper:
            line["paper"] = table.paper.get(name, "")
        lines.append(line)
    return lines


def _other_metrics(kept: Sequence[KeptRun]) -> dict[str, list[float]]:
    """Return the results of models other than the global one, by the prefix of their metrics' names."""
    return {OWN: [it.own for it in kept], VOTE: [it.vote for it in kept]}


def _has_others(runs: Iterable[KeptRun]) -> bool:
    return any(isfinite(value) for it in runs for value in (it.own, it.vote))


def _model_legend(runs: Sequence[KeptRun]) -> str:
    """Explain which model each number describes, if some methods produce several kinds of models."""
    if not _has_others(runs):
        return ""
    metric = runs[0].metric
    explanations = " ".join(f"*{called(begins + metric)}*: {belongs_to(begins + metric)}." for begins in (OWN, VOTE))
    return f"*{called(metric)}*: the job's global model, on the job's test set. {explanations}"


def _best(it: KeptRun) -> float:
    found = nan
    for value in it.values:
        if not isfinite(found) or better(it.metric, value, found):
            found = value
    return found


def _target(reach: Goal) -> str:
    return metric_shown(reach.metric, reach.value)


def _firsts(kept: Sequence[KeptRun], reach: Goal, in_a_row: int) -> str:
    """Return the first round at the target of each run, and the mean if all runs reach it."""
    firsts = [rounds_to(it.course, reach, in_a_row) for it in kept]
    mean = [f"mean {fmean(first or 0 for first in firsts):.1f}"] if len(kept) > 1 and None not in firsts else []
    return "; ".join([" / ".join("-" if first is None else str(first) for first in firsts), *mean])


def _markdown(lines: Sequence[Mapping[str, str]]) -> str:
    head = list(lines[0])
    rows = [head, ["---"] * len(head), *([line[key] for key in head] for line in lines)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _made_by(name: str) -> str:
    return (
        f"Generated by `sojourn papers {name}` from the job files in this folder; [{RUNS}]({RUNS}) and "
        f"[{COURSES}]({COURSES}) contain the results of all runs. "
        "Means over several seeds are shown with half of their 95 % confidence interval."
    )


def _when(done: Mapping[str, Sequence[KeptRun]]) -> str:
    """Describe when and with which versions the runs were made, and how long they took."""
    runs = [it for kept in done.values() for it in kept]
    if not runs:
        return ""
    dates, versions = sorted({it.date for it in runs}), sorted({it.version for it in runs})
    seconds = sum(it.seconds for it in runs)
    cost = f" They took {clock_of(seconds)}, in parallel to other work." if seconds else ""
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"Runs of {days}, version {', '.join(versions)}.{cost}"
