"""A paper's table as a folder: job files, `table.toml`, results of finished runs, and the list of all tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from coordinator.results.folder import Rows, write_table
from coordinator.results.job_metrics import metric_in
from coordinator.strategies.strategy import Strategy
from sojourn import __version__
from sojourn.errors import ConfigError
from sojourn.settings import nearest, read_file
from sojourn.tables import number_table

if TYPE_CHECKING:
    from rich.console import Console


FILE = "table.toml"
HOME = "benchmarks/papers"
"""The folder of the included tables in a clone of the repository."""


class PaperTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of `table.toml`."""

    title: str
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (1,)
    methods: tuple[str, ...] = ()
    """The names of the job files in the table's order, without `.toml`; by default all of them, sorted."""
    reach: float | str | None = None
    """A target whose first round is also reported: 0.5, or "rmse <= 0.5"."""
    in_a_row: Annotated[int, msgspec.Meta(ge=1)] = 1
    """The number of consecutive rounds at the target, to exclude lucky rounds."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Pairs of methods whose difference per seed is also reported: the first minus the second."""
    about: str = ""
    """What is compared, and what was left out, in Markdown."""
    findings: str = ""
    """The results and their interpretation, in Markdown."""
    paper: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """The paper's results for each method."""


def tables_in(home: Path) -> list[Path]:
    """Return all folders with a table."""
    return sorted(path.parent for path in home.glob(f"*/{FILE}"))


def folder_of(name: str, home: Path) -> Path:
    """Return the folder of a table by its name or path; ConfigError lists the tables."""
    for folder in (home / name, Path(name)):
        if name and (folder / FILE).is_file():
            return folder
    known = [path.name for path in tables_in(home)]
    if not known:
        raise ConfigError(
            f"{home}: there are no tables here. They are in the repository, in {HOME}: run this in a clone of it, or "
            f"set --tables to the folder. A table is a folder with {FILE} and one job file per method"
        )
    raise ConfigError(f"there is no table {name!r} in {home}; {nearest(name, known)}")


def read_table(folder: Path) -> tuple[PaperTable, list[Path]]:
    """Read a table's folder, with the job files of its methods in order."""
    table = read_file(folder / FILE, PaperTable)
    there = {path.stem: path for path in sorted(folder.glob("*.toml")) if path.name != FILE}
    if not there:
        raise ConfigError(f"{folder}: contains no job files; a table needs one per method")
    for name in (*table.methods, *table.paper, *chain.from_iterable(table.pairs)):
        if name not in there:
            raise ConfigError(f"{folder / FILE}: there is no method {name!r} in this folder; {nearest(name, there)}")
    return table, [there[name] for name in (table.methods or tuple(there))]


# The results of a table are kept next to its job files: a row per run, and the course of each run. The folders of the
# runs are large and stay where they were created; these two files are small enough for a repository, and the table's
# page is generated from them alone.

RUNS, COURSES = "runs.csv", "courses.csv"
RUN_COLUMNS = (
    "method", "seed", "date", "version", "seconds", "metric", "own", "vote", "rounds", "visits", "lost", "settings",
    "strategy",
)  # fmt: skip
COURSE_COLUMNS = ("method", "seed", "round", "value", "loss", "bytes", "clock")
DIGITS = 5


@dataclass(frozen=True)
class KeptRun:
    """One run of a table: its method and seed, when and with which version it was made, and its rounds.

    metric: `course` of the job's global model. own, vote: the metrics of the devices' local models, and of their vote,
    at the end; NaN if a method produces none.
    seconds: real time, including other load on the machine; 0 if the run was interrupted.
    settings: a short digest of the job file; the run is repeated if the file has changed.
    strategy: the same for the strategy; empty if it was not recorded.
    """

    method: str
    seed: int
    date: str
    seconds: float
    metric: str
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
        """The main metric, round by round."""
        return [metric_in(row, self.metric) for row in self.course]

    def is_of(self, settings: str, strategy: str) -> bool:
        """Return whether the job file and the strategy are unchanged since the run."""
        return self.settings == settings and self.strategy in ("", strategy)


def digest_of(file: Path) -> str:
    """Return a digest that changes with the job file."""
    return _short(file.read_bytes())


def strategy_digest(strategy: Strategy) -> str:
    """Return a digest that changes with a strategy's parts and their settings.

    A new setting of a part whose default keeps the behaviour does not change it.
    """
    parts = (getattr(strategy, kind) for kind in strategy.__struct_fields__)
    described = [[type(part).__name__, _given(part)] for part in parts]
    return _short(msgspec.json.encode(described, order="sorted"))


def _given(part: msgspec.Struct) -> dict[str, object]:
    """Return the settings of a part that differ from their defaults."""
    fields = msgspec.structs.fields(part)
    return {it.name: value for it in fields if (value := getattr(part, it.name)) != it.default}


def _short(content: bytes) -> str:
    return sha256(content).hexdigest()[:12]


def kept_course(rows: Rows, name: str) -> list[dict[str, str]]:
    """Return a run's rounds with only what a page and an image need; `name` is the main metric."""
    return [
        {
            "round": row["round"],
            name: f"{metric_in(row, name):.{DIGITS}g}",
            "loss": f"{metric_in(row, 'loss'):.{DIGITS}g}",
            "bytes": row["bytes"],
            "clock": f"{float(row['clock']):.1f}",
        }
        for row in rows
    ]


def read_kept(folder: Path) -> dict[tuple[str, int], KeptRun]:
    """Return all runs in a table's folder, by method and seed."""
    if not (folder / RUNS).exists():
        return {}
    courses: dict[tuple[str, int], list[dict[str, str]]] = {}
    for row in _rows(folder / COURSES):
        courses.setdefault((row["method"], int(row["seed"])), []).append(row)
    found = {}
    for row in _rows(folder / RUNS):
        key, metric = (row["method"], int(row["seed"])), row["metric"]
        course = [{**each, metric: each["value"]} for each in courses.get(key, [])]
        found[key] = KeptRun(
            *key, row["date"], float(row["seconds"]), metric, float(row["own"] or nan), float(row["vote"] or nan),
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
        (it.method, it.seed, row["round"], row[it.metric], row["loss"], row["bytes"], row["clock"])
        for it in all_runs
        for row in it.course
    ]
    write_table(folder / COURSES, COURSE_COLUMNS, courses)


def _line(it: KeptRun) -> tuple[object, ...]:
    rounds = it.course[-1]["round"] if it.course else 0
    others = (f"{value:.{DIGITS}g}" if isfinite(value) else "" for value in (it.own, it.vote))
    return (
        it.method, it.seed, it.date, it.version, f"{it.seconds:.0f}", it.metric, *others, rounds, it.visits, it.lost,
        it.settings, it.strategy,
    )  # fmt: skip


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def show_tables(home: Path, console: Console) -> None:
    """Print a row per table."""
    folders = tables_in(home)
    if not folders:
        folder_of("", home)
    table = number_table("", "table", "methods", "runs", "done")
    # Users type the name next: on a narrow screen, only the description is wrapped.
    table.columns[0].no_wrap = True
    table.columns[0].min_width = max(len(folder.name) for folder in folders)
    table.add_column("what", overflow="fold")
    for folder in folders:
        settings, files = read_table(folder)
        runs = {(file.stem, seed) for file in files for seed in settings.seeds}
        done = runs & read_kept(folder).keys()
        table.add_row(folder.name, str(len(files)), str(len(runs)), str(len(done)), settings.title)
    console.print(table)
    console.print("To run or resume one: sojourn papers TABLE", markup=False)
