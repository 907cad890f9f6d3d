"""The output of a comparison: a table, an image, a CSV file and a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from coordinator.jobs.goal import Goal
from coordinator.results.folder import CONFIG, ROUNDS, ResultFolder, Rows, write_table
from coordinator.results.job_metrics import TaskMetrics, metric_in, metric_shown, spread_shown, task_in
from coordinator.results.plots import course_plot
from coordinator.results.report import (
    REPORT,
    html_table,
    links,
    picture,
    readable,
    section,
    write_page,
)
from coordinator.results.run_description import capital, what_was_run
from sojourn.markup import Markup, tag
from sojourn.protocol.metric_names import MAIN, OWN, SHARES, VOTE, belongs_to, called, significant
from sojourn.settings import parse
from sojourn.text import clock_of

if TYPE_CHECKING:
    from fleet_sim.settings import Simulation

CSV, PICTURE = "compare.csv", "compare.png"
_TRAINING = tag(
    "p",
    tag("b", "Different training settings"),
    ", so the comparison covers more than the strategies: see the settings below. ",
    tag("code", "sojourn compare --same-training"),
    " applies the settings of the first run to all.",
)


def row(group: str, runs: Sequence[Rows], task: TaskMetrics, reach: Goal | None = None) -> dict[str, str]:
    """Return a row of the table: means over the seeds, with the spread if there are several seeds."""
    ends, main = [rows[-1] for rows in runs if rows], task.main
    finals = [metric_in(end, main) for end in ends]
    bests = [metric_in(task.best(rows), main) for rows in runs if rows]
    line = {"run": group, called(main): spread_shown(main, finals), "best": spread_shown(main, bests)}
    for name in _other_metrics(task):
        line[called(name)] = spread_shown(name, [metric_in(end, name) for end in ends])
    if reach is not None:
        line[f"round of {_words(reach)}"] = _reached(runs, reach)
    return line | {
        "rounds": _mean([float(end["round"]) for end in ends], "{:.0f}".format),
        "visits": _mean([sum(float(each["visits"]) for each in rows) for rows in runs if rows], "{:.0f}".format),
        "MB": _mean([sum(float(each["bytes"]) for each in rows) / 1e6 for rows in runs if rows], "{:.1f}".format),
        "clock": _mean([float(end["clock"]) for end in ends], clock_of),
    }


def rounds_to(rows: Rows, reach: Goal, in_a_row: int = 1) -> int | None:
    """Return the first round of each run that starts `in_a_row` consecutive rounds at the target."""
    met = [reach.met(metric_in(each, reach.metric)) for each in rows]
    starts = range(len(met) - in_a_row + 1)
    return next((int(rows[at]["round"]) for at in starts if all(met[at : at + in_a_row])), None)


def _words(reach: Goal) -> str:
    value = f"{100 * reach.value:g} %" if reach.metric in SHARES else significant(reach.value)
    return value if reach.metric in MAIN.values() else f"{called(reach.metric)} {value}"


def different(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the settings that differ between groups, by group; empty if there are none."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    apart = [key for key in keys if len({str(values.get(key)) for values in settings.values()}) > 1]
    return {group: {key: str(values.get(key, "-")) for key in apart} for group, values in settings.items() if apart}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of a comparison: its group, its settings and its tables."""

    folder: Path
    group: str
    simulation: Simulation

    @cached_property
    def rounds(self) -> Rows:
        """The rounds of the run."""
        return ResultFolder(self.folder, resume=True).rows(ROUNDS)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The full settings of the run."""
        return parse(self.simulation.text, CONFIG)

    @property
    def task(self) -> TaskMetrics:
        """The task of the run."""
        return task_in(self.config)

    @property
    def line(self) -> dict[str, Any]:
        """Return the run's row of the CSV file."""
        main, best = self.task.main, self.task.best(self.rounds)
        return {
            "run": self.folder.name,
            "group": self.group,
            "seed": self.config["seed"],
            main: self.rounds[-1].get(main, ""),
            "best": best.get(main, ""),
            "best_round": best["round"],
            "rounds": self.rounds[-1]["round"],
            **{key: sum(int(each[key]) for each in self.rounds) for key in ("visits", "lost", "bytes")},
            "clock": self.rounds[-1]["clock"],
        }


def write_report(folder: Path, runs: Sequence[FinishedRun], table: Rows, training: Mapping[str, Any]) -> None:
    """Write the image, the CSV file and the page; `training` lists differences in the training settings."""
    groups: dict[str, list[Rows]] = {}
    for it in runs:
        groups.setdefault(it.group, []).append(it.rounds)
    main = runs[0].task.main
    course_plot(groups, folder / PICTURE, main)
    lines = [it.line for it in runs]
    if others := _others_of(runs):
        lines = [{**it.line, **{name: it.rounds[-1].get(name, "") for name in others}} for it in runs]
    write_table(folder / CSV, list(lines[0]), [list(line.values()) for line in lines])
    fleet = what_was_run({**runs[0].config, "strategy": ", ".join(groups), "seed": ", ".join(_seeds(lines))})
    parts = [
        tag("p", fleet, class_="lead"),
        section("Comparison", html_table(table), *_model_legend(runs, main), *([_TRAINING] if training else [])),
        picture(PICTURE, f"{capital(called(main))} by round, by simulated time, by bytes"),
        section("All runs", _every_run(lines, main)),
        *_settings({it.group: it.config for it in runs}),
        section("Files", links({CSV: "a row per run", PICTURE: "the image"})),
    ]
    write_page(folder / REPORT, "Comparison", parts)


def _model_legend(runs: Sequence[FinishedRun], main: str) -> list[Markup]:
    """Explain which model each number describes, if some runs produce several kinds of models."""
    if not (others := _others_of(runs)):
        return []
    whole = f"{called(main)}, best: the job's global model, on the job's test set"
    explanations = "".join(
        f" {called(name)}: {belongs_to(name)}{', mean' if name.startswith(OWN) else ''}." for name in others
    )
    return [tag("p", f"{whole}.{explanations}")]


def _others_of(runs: Sequence[FinishedRun]) -> list[str]:
    return list(dict.fromkeys(name for it in runs for name in _other_metrics(it.task)))


def _other_metrics(task: TaskMetrics) -> list[str]:
    """Return the metrics of models other than the job's global model."""
    own, vote = [OWN + task.main] if task.own else [], [VOTE + task.main] if task.finished else []
    return [*own, *vote]


def _seeds(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(line["seed"]) for line in lines))


def _every_run(lines: Sequence[Mapping[str, Any]], main: str) -> Markup:
    """Return a row per run with a link to its page."""
    shown = [
        {
            "run": line["run"],
            "seed": str(line["seed"]),
            main: line[main],
            "best": f"{metric_shown(main, float(line['best'] or nan))} in round {line['best_round']}",
            "visits": str(line["visits"]),
            "lost": str(line["lost"]),
            "bytes": str(line["bytes"]),
            "clock": line["clock"],
        }
        for line in lines
    ]
    return html_table(readable(shown), {line["run"]: f"{line['run']}/{REPORT}" for line in lines})


def _settings(configs: Mapping[str, Mapping[str, Any]]) -> list[Markup]:
    """Return the settings that differ between the groups, and those they share."""
    flat = {group: _flat(config) for group, config in configs.items()}
    apart = different(flat)
    keys = list(next(iter(apart.values()))) if apart else []
    rows = [{"setting": key, **{group: values[key] for group, values in apart.items()}} for key in keys]
    shared = [f"{key} = {value}" for key, value in next(iter(flat.values())).items() if key not in keys]
    differ = [section("Settings that differ", html_table(rows))] if rows else []
    return [*differ, section("Common settings", tag("pre", "\n".join(shared)))]


def _flat(config: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """Return all settings by their paths, except the seed, which differs within a group."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{key}.")
        elif path or key != "seed":
            found[f"{path}{key}"] = str(value)
    return found


def _reached(runs: Sequence[Rows], reach: Goal) -> str:
    rounds = [rounds_to(rows, reach) for rows in runs]
    known = [each for each in rounds if each is not None]
    if not known:
        return "not reached"
    mean = f"{fmean(known):.0f}" if len(known) > 1 else str(known[0])
    return mean if len(known) == len(rounds) else f"{mean} ({len(known)} of {len(rounds)} runs)"


def _mean(numbers: Sequence[float], shown: Callable[[float], str]) -> str:
    return shown(fmean(numbers)) if numbers else "-"
