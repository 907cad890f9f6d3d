"""Compares several simulations on the same split in one table, one image and one page."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from coordinator.jobs.goal import goal_of
from coordinator.results.folder import CONFIG, HOME, ROUNDS, VISITS, ResultFolder, Rows, free
from coordinator.results.job_metrics import TaskMetrics, shows_members
from coordinator.results.report import MODEL, REPORT
from coordinator.results.visit_totals import describe_losses
from fleet_sim.console.comparison_report import CSV, PICTURE, FinishedRun, different, row, write_report
from fleet_sim.console.simulating import read, run, write
from fleet_sim.settings import Simulation, read_simulation
from sojourn.errors import ConfigError, JobError
from sojourn.protocol.metric_names import called
from sojourn.tables import number_table


@dataclass(frozen=True)
class Comparison:
    """A comparison of every file with every strategy and every seed; it may resume in an existing folder.

    same_training: all runs use the training settings of the first one, except where `changes` sets them.
    """

    files: Sequence[Path]
    strategies: Sequence[str]
    seeds: Sequence[int]
    changes: Mapping[str, Any]
    output: Path | None = None
    resume: Path | None = None
    reach: float | str | None = None
    same_training: bool = False


@dataclass(frozen=True)
class ComparedRun:
    """One simulation of a comparison; the runs of one group differ only in their seeds."""

    group: str
    seed: int | None
    simulation: Simulation

    @property
    def name(self) -> str:
        """The name of the run and of its folder."""
        return self.group if self.seed is None else f"{self.group} seed {self.seed}"

    @property
    def folder(self) -> str:
        """The path of its folder."""
        return self.name.replace(" ", "-")


def compare(comparison: Comparison, console: Console) -> None:
    """Run all simulations of a comparison, and write one table, one image and one page."""
    runs = runs_of(comparison)
    task = _task(runs)
    reach = None if comparison.reach is None else goal_of(comparison.reach, task.kind, "--reach")
    folder = comparison.resume or comparison.output or free(HOME / "compare")
    training = different({it.group: training_of(it.simulation) for it in runs})
    if training:
        _warn(training, runs[0].group, console)
    found: dict[str, list[Rows]] = {}
    for at, it in enumerate(runs, 1):
        write(console, f"{it.name} ({at} of {len(runs)})", "bold")
        for note in it.simulation.notes:
            write(console, f"  {note}", "yellow")
        again = f"sojourn compare --resume {folder} with the same options"
        rows = rows_of_run(it, folder / it.folder, console, again, resume=comparison.resume is not None)
        found.setdefault(it.group, []).append(rows)
    table = [row(group, rows, task, reach) for group, rows in found.items()]
    console.print(_table(table, comparison.seeds))
    write_report(folder, [FinishedRun(folder / it.folder, it.group, it.simulation) for it in runs], table, training)
    console.print(f"{REPORT}, {PICTURE} and {CSV} are in {folder}", soft_wrap=True, markup=False)
    reasons = {it.name: ResultFolder(folder / it.folder, resume=True).failure for it in runs}
    failures = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    if failures:
        raise JobError("; ".join(failures))


def _task(runs: Sequence[ComparedRun]) -> TaskMetrics:
    """Return the common task; raise ConfigError if the runs have different tasks without a common metric."""
    kinds = {it.group: it.simulation.read().task.kind for it in runs}
    if len(set(kinds.values())) > 1:
        described = ", ".join(f"{group} is {kind}" for group, kind in kinds.items())
        raise ConfigError(f"these runs have different tasks without a common metric: {described}")
    strategies = [it.simulation.read().parts() for it in runs]
    own = any(each.objective.outcome == "own models" for each in strategies)
    finished = any(shows_members(each.finisher) for each in strategies)
    return TaskMetrics(next(iter(kinds.values())), own, finished=finished)


def training_of(simulation: Simulation) -> dict[str, Any]:
    """Return a simulation's training settings: the defaults of its strategy, overridden by the job file."""
    training: dict[str, Any] = msgspec.to_builtins(simulation.read().parts().training)
    return training


def runs_of(comparison: Comparison) -> list[ComparedRun]:
    """Return a run per file, strategy and seed; raise ConfigError if two runs have the same name."""
    found: dict[str, ComparedRun] = {}
    changes = dict(comparison.changes)
    for file, strategy, seed in product(
        comparison.files or (None,), comparison.strategies or (None,), comparison.seeds or (None,)
    ):
        given = {path: value for path, value in (("strategy", strategy), ("seed", seed)) if value is not None}
        simulation = read(file, {**changes, **given})
        if comparison.same_training and not found:
            changes |= {f"training.{key}": value for key, value in training_of(simulation).items()}
        words = [file.stem if file else "", strategy or ""]
        it = ComparedRun(" ".join(filter(None, words)) or simulation.read().strategy, seed, simulation)
        if it.name in found:
            raise ConfigError(f"two runs have the name {it.name!r}: list each file, strategy and seed once")
        found[it.name] = it
    return list(found.values())


def _warn(training: Mapping[str, Mapping[str, str]], first: str, console: Console) -> None:
    """Warn if the runs train with different settings, and print how to align them."""
    write(
        console,
        "These runs use different training settings, so the comparison covers more than the strategies:",
        "yellow",
    )
    table = number_table("", "run", *next(iter(training.values())))
    for group, values in training.items():
        table.add_row(group, *values.values())
    console.print(table)
    write(
        console,
        f"To compare only the strategies: --same-training applies the settings of {first} to all; --epochs, --batch, "
        "--lr and --set training.KEY=VALUE set one value for all.\n",
        "yellow",
    )


def rows_of_run(it: ComparedRun, folder: Path, console: Console, again: str, *, resume: bool) -> Rows:
    """Return the rounds of a run, from its folder if it is finished; otherwise run it.

    again: the command that resumes it, printed if it is interrupted.
    """
    begun = resume and (folder / CONFIG).exists()
    if begun and read_simulation((folder / CONFIG).read_text(encoding="utf-8"), CONFIG).text != it.simulation.text:
        raise ConfigError(f"{folder} was started with other settings (see its {CONFIG}): compare in another folder")
    if begun and (folder / MODEL).exists():
        write(console, "  already done", "dim")
        return ResultFolder(folder, resume=True).rows(ROUNDS)
    if begun and not (folder / "checkpoint.bin").exists():
        shutil.rmtree(folder)  # no round was finished
        begun = False
    results = run(it.simulation, folder, console, again, resume=begun, rounds=False)[0].results
    rows, visits = results.rows(ROUNDS), results.rows(VISITS)
    task = results.task
    text = f"{called(task.main)} {task.text(rows[-1])}, best {task.text(task.best(rows))}. {describe_losses(visits)}"
    console.print(Padding(Text(text, "dim"), (0, 0, 0, 2)))
    if results.failure:
        write(console, f"  {results.failure}", "red")
    return rows


def _table(rows: Sequence[Mapping[str, str]], seeds: Sequence[int]) -> Table:
    means = f", means over the seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else ""
    table = number_table(f"comparison{means}", *rows[0])
    for each in rows:
        table.add_row(*each.values())
    return table
