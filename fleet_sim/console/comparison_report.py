"""What a comparison leaves beside the folders of its runs: a table, a picture, a CSV file, and a page."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

from coordinator.results.folder import CONFIG, ROUNDS, ResultFolder, write_table
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
from coordinator.results.task_figures import figure_in, figure_shown, spread_shown, task_in
from coordinator.results.what_was_run import capital, what_was_run
from sojourn.figures import clock_of
from sojourn.protocol.figure_names import MAIN, OWN, SHARES, VOTE, belongs_to, called, significant
from sojourn.settings import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from coordinator.jobs.goal import Goal
    from coordinator.results.folder import Rows
    from coordinator.results.task_figures import TaskFigures
    from fleet_sim.settings import Simulation

CSV, PICTURE = "compare.csv", "compare.png"
_TRAINING = (
    "<p><b>They train differently</b>, so more than the strategies is compared: the settings below say how. "
    "<code>sojourn compare --same-training</code> gives all of them what the first has.</p>"
)


def row(group: str, runs: Sequence[Rows], task: TaskFigures, reach: Goal | None = None) -> dict[str, str]:
    """One line of the table: means over the seeds, with their spread where there are several."""
    ends, main = [rows[-1] for rows in runs if rows], task.main
    finals = [figure_in(end, main) for end in ends]
    bests = [figure_in(task.best(rows), main) for rows in runs if rows]
    line = {"run": group, called(main): spread_shown(main, finals), "best": spread_shown(main, bests)}
    for name in _others(task):
        line[called(name)] = spread_shown(name, [figure_in(end, name) for end in ends])
    if reach is not None:
        line[f"round of {_words(reach)}"] = _reached(runs, reach)
    return line | {
        "rounds": _mean([float(end["round"]) for end in ends], "{:.0f}".format),
        "visits": _mean([sum(float(each["visits"]) for each in rows) for rows in runs if rows], "{:.0f}".format),
        "MB": _mean([sum(float(each["bytes"]) for each in rows) / 1e6 for rows in runs if rows], "{:.1f}".format),
        "clock": _mean([float(end["clock"]) for end in ends], clock_of),
    }


def rounds_to(rows: Rows, reach: Goal, in_a_row: int = 1) -> int | None:
    """The first round whose model was that good, and those of the rounds after it, so many in all."""
    met = [reach.met(figure_in(each, reach.figure)) for each in rows]
    starts = range(len(met) - in_a_row + 1)
    return next((int(rows[at]["round"]) for at in starts if all(met[at : at + in_a_row])), None)


def _words(reach: Goal) -> str:
    value = f"{100 * reach.value:g} %" if reach.figure in SHARES else significant(reach.value)
    return value if reach.figure in MAIN.values() else f"{called(reach.figure)} {value}"


def different(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Of the settings of several groups those in which they differ, by group; nothing where all are the same."""
    keys = dict.fromkeys(key for values in settings.values() for key in values)
    apart = [key for key in keys if len({str(values.get(key)) for values in settings.values()}) > 1]
    return {group: {key: str(values.get(key, "-")) for key in apart} for group, values in settings.items() if apart}


@dataclass(frozen=True)
class FinishedRun:
    """A run of a comparison that is in its folder: which group it is of, its settings, its tables."""

    folder: Path
    group: str
    simulation: Simulation

    @cached_property
    def rounds(self) -> Rows:
        """Its rounds."""
        return ResultFolder(self.folder, resume=True).rows(ROUNDS)

    @cached_property
    def config(self) -> dict[str, Any]:
        """All its settings."""
        return parse(self.simulation.text, CONFIG)

    @property
    def task(self) -> TaskFigures:
        """What it learns."""
        return task_in(self.config)

    @property
    def line(self) -> dict[str, Any]:
        """Its line in the CSV file."""
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
    """The picture, the CSV file and the page; `training` is not empty if the groups train differently."""
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
        f"<p class='lead'>{html.escape(fleet)}</p>",
        section("Side by side", html_table(table) + _whose(runs, main) + (_TRAINING if training else "")),
        picture(PICTURE, f"{capital(called(main))} by round, by the fleet's clock, by bytes"),
        section("Every run", _every_run(lines, main)),
        *_settings({it.group: it.config for it in runs}),
        section("Files", links({CSV: "every run, a line each", PICTURE: "the picture"})),
    ]
    write_page(folder / REPORT, "Side by side", parts)


def _whose(runs: Sequence[FinishedRun], main: str) -> str:
    """Which model a number belongs to, where some runs end with others than one model."""
    if not (others := _others_of(runs)):
        return ""
    whole = f"{called(main)}, best: the job's one model, on the job's test set"
    told = "".join(f" {called(name)}: {belongs_to(name)}{', mean' if name.startswith(OWN) else ''}." for name in others)
    return f"<p>{html.escape(whole)}.{html.escape(told)}</p>"


def _others_of(runs: Sequence[FinishedRun]) -> list[str]:
    return list(dict.fromkeys(name for it in runs for name in _others(it.task)))


def _others(task: TaskFigures) -> list[str]:
    """The figures of other models than the job's one that a comparison shows."""
    own, vote = [OWN + task.main] if task.own else [], [VOTE + task.main] if task.finished else []
    return [*own, *vote]


def _seeds(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(line["seed"]) for line in lines))


def _every_run(lines: Sequence[Mapping[str, Any]], main: str) -> str:
    """A line for each run, which leads to its own page."""
    shown = [
        {
            "run": line["run"],
            "seed": str(line["seed"]),
            main: line[main],
            "best": f"{figure_shown(main, float(line['best'] or nan))} in round {line['best_round']}",
            "visits": str(line["visits"]),
            "lost": str(line["lost"]),
            "bytes": str(line["bytes"]),
            "clock": line["clock"],
        }
        for line in lines
    ]
    return html_table(readable(shown), {line["run"]: f"{line['run']}/{REPORT}" for line in lines})


def _settings(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the groups do not have in common, and what they do."""
    flat = {group: _flat(config) for group, config in configs.items()}
    apart = different(flat)
    keys = list(next(iter(apart.values()))) if apart else []
    rows = [{"setting": key, **{group: values[key] for group, values in apart.items()}} for key in keys]
    shared = [f"{key} = {value}" for key, value in next(iter(flat.values())).items() if key not in keys]
    differ = [section("Settings in which they differ", html_table(rows))] if rows else []
    return [*differ, section("Settings that they share", f"<pre>{html.escape(chr(10).join(shared))}</pre>")]


def _flat(config: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """All settings by their paths, but for the seed, in which runs of one group differ."""
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
