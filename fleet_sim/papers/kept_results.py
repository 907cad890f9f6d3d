"""What the runs of a table came to, kept beside its job files: a line for each run, and each run's course.

The folders of the runs are large and stay where they were made; these two files are small enough for a repository, and
the table's page is made of them alone.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite, nan
from typing import TYPE_CHECKING

from coordinator.results.folder import write_table
from coordinator.results.task_figures import figure_in
from sojourn import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from coordinator.results.folder import Rows

RUNS, COURSES = "runs.csv", "courses.csv"
RUN_COLUMNS = (
    "method", "seed", "date", "version", "seconds", "figure", "own", "vote", "rounds", "visits", "lost", "settings",
)  # fmt: skip
COURSE_COLUMNS = ("method", "seed", "round", "value", "loss", "bytes", "clock")
DIGITS = 5


@dataclass(frozen=True)
class KeptRun:
    """One run of a table: which method and seed, when and with what it was made, and its rounds.

    figure: what `course` tells of the job's one model. own, vote: the same of the devices' own models, and of their
    vote, at the end; NaN where a method does not end in such.
    seconds: of this machine, with all that ran beside it; 0 where the run was not done in one go.
    settings: a short digest of the job file that it was made of; a file that has changed since is run again.
    """

    method: str
    seed: int
    date: str
    seconds: float
    figure: str
    own: float
    vote: float
    course: Rows
    visits: int
    lost: int
    settings: str
    version: str = __version__

    @property
    def values(self) -> list[float]:
        """The main figure, round by round."""
        return [figure_in(row, self.figure) for row in self.course]


def digest_of(file: Path) -> str:
    """What tells whether a job file has changed."""
    return sha256(file.read_bytes()).hexdigest()[:12]


def kept_course(rows: Rows, name: str) -> list[dict[str, str]]:
    """The rounds of a run, with no more than a page and a picture need: its main figure is `name`."""
    return [
        {
            "round": row["round"],
            name: f"{figure_in(row, name):.{DIGITS}g}",
            "loss": f"{figure_in(row, 'loss'):.{DIGITS}g}",
            "bytes": row["bytes"],
            "clock": f"{float(row['clock']):.1f}",
        }
        for row in rows
    ]


def read_kept(folder: Path) -> dict[tuple[str, int], KeptRun]:
    """All runs that a table's folder keeps, by method and seed."""
    if not (folder / RUNS).exists():
        return {}
    courses: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in _rows(folder / COURSES):
        courses.setdefault((row["method"], int(row["seed"])), []).append(row)
    found = {}
    for row in _rows(folder / RUNS):
        key, figure = (row["method"], int(row["seed"])), row["figure"]
        course = [{**each, figure: each["value"]} for each in courses.get(key, [])]
        found[key] = KeptRun(
            *key, row["date"], float(row["seconds"]), figure, float(row["own"] or nan), float(row["vote"] or nan),
            course,
            int(row["visits"]), int(row["lost"]), row["settings"], row["version"],
        )  # fmt: skip
    return found


def write_kept(folder: Path, runs: Iterable[KeptRun]) -> None:
    """Write all runs of a table's folder."""
    all_runs = sorted(runs, key=lambda it: (it.method, it.seed))
    write_table(folder / RUNS, RUN_COLUMNS, [_line(it) for it in all_runs])
    courses = [
        (it.method, it.seed, row["round"], row[it.figure], row["loss"], row["bytes"], row["clock"])
        for it in all_runs
        for row in it.course
    ]
    write_table(folder / COURSES, COURSE_COLUMNS, courses)


def _line(it: KeptRun) -> tuple[object, ...]:
    rounds = it.course[-1]["round"] if it.course else 0
    others = (f"{value:.{DIGITS}g}" if isfinite(value) else "" for value in (it.own, it.vote))
    return (
        it.method, it.seed, it.date, it.version, f"{it.seconds:.0f}", it.figure, *others, rounds, it.visits, it.lost,
        it.settings,
    )  # fmt: skip


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
