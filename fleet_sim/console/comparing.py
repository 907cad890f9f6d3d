"""Several simulations on the same split, side by side: one table, one picture."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from itertools import product
from math import isfinite, nan
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from coordinator.console.time_left import clock_of
from coordinator.console.watching import percent
from coordinator.results.folder import CONFIG, ROUNDS, ResultFolder
from coordinator.results.plots import accuracy_plot
from coordinator.results.report import MODEL, write_page
from fleet_sim.console.simulating import HOME, free, read, run
from fleet_sim.console.tables import plain_table
from fleet_sim.settings import read_simulation
from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from coordinator.results.folder import Rows
    from fleet_sim.settings import Simulation


@dataclass(frozen=True)
class Comparison:
    """What to compare: every file with every strategy and every seed; and whether to go on in a folder."""

    files: Sequence[Path]
    strategies: Sequence[str]
    seeds: Sequence[int]
    changes: Mapping[str, Any]
    output: Path | None = None
    resume: Path | None = None
    reach: float | None = None


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


def compare(comparison: Comparison, console: Console) -> None:
    """Run all simulations of a comparison, and show them in one table, one picture and one page."""
    runs = _runs(comparison)
    folder = comparison.resume or comparison.output or free(HOME / "compare")
    found: dict[str, list[Rows]] = {}
    for at, it in enumerate(runs, 1):
        console.print(f"[bold]{it.name}[/] [dim]({at} of {len(runs)})[/]")
        found.setdefault(it.group, []).append(_rows(it, folder / it.name.replace(" ", "-"), console, comparison))
    table = [row(group, rows, comparison.reach) for group, rows in found.items()]
    console.print(_table(table))
    accuracy_plot(found, folder / "compare.png")
    write_page(folder / "report.html", "Side by side", {"compare.png": "Accuracy"}, {"All of them": table})
    console.print(f"compare.png and report.html are in {folder}", soft_wrap=True)


def _runs(comparison: Comparison) -> list[ComparedRun]:
    found: dict[str, ComparedRun] = {}
    for file, strategy, seed in product(
        comparison.files or (None,), comparison.strategies or (None,), comparison.seeds or (None,)
    ):
        given = {path: value for path, value in (("strategy", strategy), ("seed", seed)) if value is not None}
        simulation = read(file, {**comparison.changes, **given})
        words = [file.stem if file else "", strategy or ""]
        it = ComparedRun(" ".join(filter(None, words)) or simulation.job.get("strategy", "visit"), seed, simulation)
        if it.name in found:
            raise ConfigError(f"two of the runs are called {it.name!r}: name each file, strategy and seed once")
        found[it.name] = it
    return list(found.values())


def _rows(it: ComparedRun, folder: Path, console: Console, comparison: Comparison) -> Rows:
    """The rounds of a run: from its folder where it was done before, or as they come."""
    begun = comparison.resume is not None and (folder / CONFIG).exists()
    if begun and read_simulation((folder / CONFIG).read_text(encoding="utf-8"), CONFIG).text != it.simulation.text:
        raise ConfigError(f"{folder} was begun with other settings: see its {CONFIG}, or compare in another folder")
    if begun and (folder / MODEL).exists():
        console.print("[dim]done before[/]")
        return ResultFolder(folder, resume=True).rows(ROUNDS)
    if begun and not (folder / "checkpoint.bin").exists():
        shutil.rmtree(folder)  # not one round of it was finished
        begun = False
    again = f"sojourn compare --resume {folder.parent} and the same words"
    return run(it.simulation, folder, console, again, resume=begun)[0].results.rows(ROUNDS)


def row(group: str, runs: Sequence[Rows], reach: float | None) -> dict[str, str]:
    """One line of the table: means over the seeds, with their spread where there are several."""
    ends = [rows[-1] for rows in runs if rows]
    finals = [float(end["accuracy"]) for end in ends]
    bests = [max(float(each["accuracy"]) for each in rows) for rows in runs if rows]
    line = {"run": group, "accuracy": _spread(finals), "best": _spread(bests)}
    if reach is not None:
        line[f"round of {100 * reach:g} %"] = _reached(runs, reach)
    return line | {
        "rounds": _mean([float(end["round"]) for end in ends], "{:.0f}".format),
        "visits": _mean([sum(float(each["visits"]) for each in rows) for rows in runs if rows], "{:.0f}".format),
        "MB": _mean([sum(float(each["bytes"]) for each in rows) / 1e6 for rows in runs if rows], "{:.1f}".format),
        "clock": _mean([float(end["clock"]) for end in ends], clock_of),
    }


def rounds_to(rows: Rows, reach: float) -> int | None:
    """The first round whose model was that good."""
    return next((int(each["round"]) for each in rows if float(each["accuracy"]) >= reach), None)


def _reached(runs: Sequence[Rows], reach: float) -> str:
    rounds = [rounds_to(rows, reach) for rows in runs]
    known = [each for each in rounds if each is not None]
    if not known:
        return "not reached"
    mean = f"{fmean(known):.0f}" if len(known) > 1 else str(known[0])
    return mean if len(known) == len(rounds) else f"{mean} ({len(known)} of {len(rounds)} runs)"


def _spread(shares: Sequence[float]) -> str:
    known = [share for share in shares if isfinite(share)]
    if len(known) < 2:
        return percent(known[0] if known else nan)
    return f"{100 * fmean(known):.1f} ± {100 * stdev(known):.1f} %"


def _mean(numbers: Sequence[float], shown: Callable[[float], str]) -> str:
    return shown(fmean(numbers)) if numbers else "-"


def _table(rows: Sequence[Mapping[str, str]]) -> Table:
    table = plain_table("side by side", *rows[0])
    for each in rows:
        table.add_row(*each.values())
    return table
