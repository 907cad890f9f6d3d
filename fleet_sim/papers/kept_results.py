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

import msgspec

from coordinator.results.folder import write_table
from coordinator.results.task_figures import figure_in
from sojourn import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from coordinator.results.folder import Rows
    from coordinator.strategies.strategy import Strategy

RUNS, COURSES = "runs.csv", "courses.csv"
RUN_COLUMNS = (
    "method", "seed", "date", "version", "seconds", "figure", "own", "vote", "rounds", "visits", "lost", "settings",
    "strategy",
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
    strategy: the same of its strategy, as it was then; empty where nobody noted it.
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
    strategy: str = ""
    version: str = __version__

    @property
    def values(self) -> list[float]:
        """The main figure, round by round."""
        return [figure_in(row, self.figure) for row in self.course]

    def is_of(self, settings: str, strategy: str) -> bool:
        """Whether a job file and its strategy, as they are now, are those that it was made of."""
        return self.settings == settings and self.strategy in ("", strategy)


def digest_of(file: Path) -> str:
    """What tells whether a job file has changed."""
    return _short(file.read_bytes())


def strategy_digest(strategy: Strategy) -> str:
    """What tells whether a strategy's parts, or the values that it gives them, have changed.

    A setting that a part has learned since, and that leaves it as it was by default, changes nothing.
    """
    parts = (getattr(strategy, kind) for kind in strategy.__struct_fields__)
    told = [[type(part).__name__, _given(part)] for part in parts]
    return _short(msgspec.json.encode(told, order="sorted"))


def _given(part: msgspec.Struct) -> dict[str, object]:
    """The settings of a part that are not what it has by default."""
    fields = msgspec.structs.fields(part)
    return {it.name: value for it in fields if (value := getattr(part, it.name)) != it.default}


def _short(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


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
            int(row["visits"]), int(row["lost"]), row["settings"],
            row.get("strategy") or "", row["version"],
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
        it.settings, it.strategy,
    )  # fmt: skip


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
