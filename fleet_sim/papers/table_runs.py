"""Runs all simulations of a table one after another; finished ones are kept, and the page is written after each."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.console.job_progress import describe_time_left
from coordinator.results.folder import CONFIG, ResultFolder
from coordinator.results.job_metrics import metric_in
from fleet_sim.console.comparing import ComparedRun, Comparison, rows_of_run, runs_of
from fleet_sim.console.simulating import write
from fleet_sim.papers.paper_table import (
    KeptRun,
    PaperTable,
    digest_of,
    kept_course,
    read_kept,
    strategy_digest,
    write_kept,
)
from fleet_sim.papers.table_page import PAGE, training_by_method, write_page
from sojourn.errors import ConfigError
from sojourn.protocol.metric_names import OWN, VOTE
from sojourn.settings import nearest

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class TableRuns:
    """The selected runs of a table, the folder of their results, and the engine settings of the command line."""

    folder: Path
    table: PaperTable
    files: Sequence[Path]
    output: Path
    changes: Mapping[str, Any]
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()

    @property
    def names(self) -> list[str]:
        """All methods of the table."""
        return [file.stem for file in self.files]

    def wanted(self) -> list[ComparedRun]:
        """Return the runs seed by seed, so that an interrupted table has all methods of its first seeds."""
        for name in self.methods:
            if name not in self.names:
                raise ConfigError(
                    f"{self.folder}: there is no method {name!r} in this table; {nearest(name, self.names)}"
                )
        files = [file for file in self.files if not self.methods or file.stem in self.methods]
        seeds = self.seeds or self.table.seeds
        return [it for seed in seeds for it in runs_of(Comparison(files, (), (seed,), self.changes))]


def reproduce(it: TableRuns, console: Console) -> None:
    """Run what is missing; write the page after each run."""
    methods = training_by_method(it.files)
    files = {file.stem: digest_of(file) for file in it.files}  # checked now, because files may change during a run
    runs, kept = it.wanted(), read_kept(it.folder)
    made_of = {_key(run): (files[run.group], strategy_digest(run.simulation.read().parts())) for run in runs}
    missing = [run for run in runs if (known := kept.get(_key(run))) is None or not known.is_of(*made_of[_key(run)])]
    write(console, f"{it.table.title}: {len(runs)} runs, {len(runs) - len(missing)} of them already done.")
    began = time.monotonic()
    for at, run in enumerate(missing):
        left = describe_time_left(_left(missing[at:], kept, at, time.monotonic() - began))
        write(console, f"{run.name} ({at + 1} of {len(missing)}){f', {left}' if left else ''}", "bold")
        found = _done(run, it, made_of[_key(run)], console)
        kept = {**read_kept(it.folder), _key(run): found}  # another process may run other parts of the table
        write_kept(it.folder, kept.values())
        write_page(it.folder, it.table, methods, kept)
    if not missing:
        write_page(it.folder, it.table, methods, kept)
    console.print(f"The table is in {it.folder / PAGE}", soft_wrap=True, markup=False)


def _key(run: ComparedRun) -> tuple[str, int]:
    return run.group, run.seed or 0


def _done(run: ComparedRun, it: TableRuns, made_of: tuple[str, str], console: Console) -> KeptRun:
    """Run or resume one simulation, and return its results.

    made_of: digests of its job file, and of its strategy in this version.
    """
    folder = it.output / run.folder
    resumed, began = (folder / CONFIG).exists(), time.monotonic()
    rows = rows_of_run(run, folder, console, f"sojourn papers {it.folder.name}", resume=True)
    seconds = 0.0 if resumed else float(round(time.monotonic() - began))
    today = dt.datetime.now(dt.UTC).date().isoformat()
    metric = ResultFolder(folder, resume=True).task.main
    visits, lost = (sum(int(row[key]) for row in rows) for key in ("visits", "lost"))
    course = kept_course(rows, metric)
    own, vote = (metric_in(rows[-1], begins + metric) for begins in (OWN, VOTE))
    return KeptRun(*_key(run), today, seconds, metric, own, vote, course, visits, lost, *made_of)


def _left(
    missing: Sequence[ComparedRun], kept: Mapping[tuple[str, int], KeptRun], done: int, took: float
) -> float | None:
    """Estimate the remaining seconds: as long as the same method took before, or the average of all."""
    known: dict[str, list[float]] = {}
    for (method, _), run in kept.items():
        if run.seconds:
            known.setdefault(method, []).append(run.seconds)
    if done == 0 and not known:
        return None
    every = [value for values in known.values() for value in values]
    mean = took / done if done else sum(every) / len(every)
    return sum(sum(of) / len(of) if (of := known.get(run.group)) else mean for run in missing)
