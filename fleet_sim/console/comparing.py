"""Several simulations on the same split, side by side: one table, one picture, one page."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
from rich.padding import Padding
from rich.text import Text

from coordinator.jobs.goal import goal_of
from coordinator.results.folder import CONFIG, HOME, ROUNDS, VISITS, ResultFolder, free
from coordinator.results.report import MODEL, REPORT
from coordinator.results.tallies import describe_losses
from coordinator.results.task_figures import TaskFigures, shows_members
from fleet_sim.console.comparison_report import CSV, PICTURE, FinishedRun, different, row, write_report
from fleet_sim.console.simulating import read, run, write
from fleet_sim.console.tables import plain_table
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError, JobError
from sojourn.protocol.figure_names import called

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from coordinator.results.folder import Rows
    from fleet_sim.settings import Simulation


@dataclass(frozen=True)
class Comparison:
    """What to compare: every file with every strategy and every seed; and whether to go on in a folder.

    same_training: all train as the first of them does, where `changes` say nothing else.
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
    """One simulation of a comparison; runs of one group differ in their seeds alone."""

    group: str
    seed: int | None
    simulation: Simulation

    @property
    def name(self) -> str:
        """The name of the run among the others, and that of its folder."""
        return self.group if self.seed is None else f"{self.group} seed {self.seed}"

    @property
    def folder(self) -> str:
        """Its folder's name."""
        return self.name.replace(" ", "-")


def compare(comparison: Comparison, console: Console) -> None:
    """Run all simulations of a comparison, and show them in one table, one picture and one page."""
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
        again = f"sojourn compare --resume {folder} and the same words"
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


def _task(runs: Sequence[ComparedRun]) -> TaskFigures:
    """What all of them learn; what learns something else has no figure to compare."""
    kinds = {it.group: it.simulation.read().task.kind for it in runs}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{group} is {kind}" for group, kind in kinds.items())
        raise ConfigError(f"these learn different things, and no figure is common to them: {told}")
    strategies = [it.simulation.read().parts() for it in runs]
    own = any(each.objective.outcome == "own models" for each in strategies)
    finished = any(shows_members(each.finisher) for each in strategies)
    return TaskFigures(next(iter(kinds.values())), own, finished=finished)


def training_of(simulation: Simulation) -> dict[str, Any]:
    """How the devices of a simulation train: what the job says, laid over what its strategy brings."""
    training: dict[str, Any] = msgspec.to_builtins(simulation.read().parts().training)
    return training


def runs_of(comparison: Comparison) -> list[ComparedRun]:
    """Every file with every strategy and every seed; refused where two would have one name."""
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
            raise ConfigError(f"two of the runs are called {it.name!r}: name each file, strategy and seed once")
        found[it.name] = it
    return list(found.values())


def _warn(training: Mapping[str, Mapping[str, str]], first: str, console: Console) -> None:
    """What each trains with, where that differs; and what to do about it."""
    write(console, "These train differently, so more than their strategies is compared:", "yellow")
    table = plain_table("", "run", *_keys(training))
    for group, values in training.items():
        table.add_row(group, *values.values())
    console.print(table)
    write(
        console,
        f"To compare the strategies alone: --same-training gives all of them what {first} has; --epochs, --batch, "
        "--lr and --set training.KEY=VALUE set one value for all.\n",
        "yellow",
    )


def _keys(training: Mapping[str, Mapping[str, str]]) -> list[str]:
    return list(next(iter(training.values())))


def rows_of_run(it: ComparedRun, folder: Path, console: Console, again: str, *, resume: bool) -> Rows:
    """The rounds of a run: from its folder where it was done before, or as they come.

    again: the command that goes on with it, if it is stopped.
    """
    begun = resume and (folder / CONFIG).exists()
    if begun and read_simulation((folder / CONFIG).read_text(encoding="utf-8"), CONFIG).text != it.simulation.text:
        raise ConfigError(f"{folder} was begun with other settings: see its {CONFIG}, or compare in another folder")
    if begun and (folder / MODEL).exists():
        write(console, "  done before", "dim")
        return ResultFolder(folder, resume=True).rows(ROUNDS)
    if begun and not (folder / "checkpoint.bin").exists():
        shutil.rmtree(folder)  # not one round of it was finished
        begun = False
    results = run(it.simulation, folder, console, again, resume=begun, rounds=False)[0].results
    rows, visits = results.rows(ROUNDS), results.rows(VISITS)
    task = results.task
    text = f"{called(task.main)} {task.text(rows[-1])}, at best {task.text(task.best(rows))}. {describe_losses(visits)}"
    console.print(Padding(Text(text, "dim"), (0, 0, 0, 2)))
    if results.failure:
        write(console, f"  {results.failure}", "red")
    return rows


def _table(rows: Sequence[Mapping[str, str]], seeds: Sequence[int]) -> Table:
    means = f", means over the seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else ""
    table = plain_table(f"side by side{means}", *rows[0])
    for each in rows:
        table.add_row(*each.values())
    return table
