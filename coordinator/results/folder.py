"""The folder that a simulation or a job leaves: settings to run it again, tables, the model, and pictures."""

from __future__ import annotations

import csv
import platform
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from coordinator.results.measures import MEASURES
from coordinator.results.task_figures import task_in
from sojourn import __version__
from sojourn.errors import ConfigError
from sojourn.settings import parse
from sojourn.toml import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coordinator.results.task_figures import TaskFigures
    from sojourn.protocol.wire import RoundReport, VisitReport

    Rows = Sequence[Mapping[str, str]]
    """A table as it is read back: each row by its columns' names."""

ROUNDS, VISITS, CONFIG, LOG = "rounds.csv", "visits.csv", "config.toml", "log.txt"
FAILED = "failed.txt"
"""Why the job failed; there is no such file where it did not."""
FAILURE_ROOM = 20_000
"""Characters of it that are read, at most."""
HOME = Path("simulations")
"""Where results go, unless a person names a folder."""
COLUMNS = {
    ROUNDS: ("round", "accuracy", "loss", "tours", "visits", "lost", "bytes", "seconds", "clock", *MEASURES),
    VISITS: (
        "clock", "site", "tour", "device", "hop", "status", "reason", "samples", "norm", "loss", "seconds", "down",
        "up",
    ),
}  # fmt: skip
PACKAGES = ("numpy", "onnxruntime", "torch", "msgspec", "paho-mqtt", "scikit-learn")


@dataclass(frozen=True)
class EndedVisit:
    """A visit that ended: when, on which tour of which site, and how.

    down, up: the bytes on the device's link since its visit before; 0 where nobody counted.
    """

    at: float
    site: str
    tour: str
    report: VisitReport
    down: int = 0
    up: int = 0


class ResultFolder:
    """The tables of a simulation or a job, written as it runs, so that they are there however it ends."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file: name a folder for the results")
        if path.exists() and any(path.iterdir()) and not resume:
            raise ConfigError(f"{path} is not empty: name another folder, or add --resume to go on with what is in it")
        if resume and not (path / CONFIG).exists():
            raise ConfigError(f"{path} has no {CONFIG}: there is nothing to go on with")
        self.path = path
        self._files: dict[str, TextIO] = {}

    def open(self) -> None:
        """Make the folder, if it is not there."""
        self.path.mkdir(parents=True, exist_ok=True)

    def begin(self, settings: str, made_by: Mapping[str, str] | None = None) -> None:
        """Write down the settings that give this again, and the versions of what runs it: this program, unless told."""
        self.settings(settings)
        (self.path / "versions.toml").write_text(dumps(dict(made_by or versions())), encoding="utf-8")
        more = {ROUNDS: self.task.more}
        for name, columns in COLUMNS.items():
            self.table(name, (*columns, *more.get(name, ())), ())

    @cached_property
    def task(self) -> TaskFigures:
        """What is learnt."""
        return task_in(parse((self.path / CONFIG).read_text(encoding="utf-8"), CONFIG))

    def settings(self, text: str) -> None:
        """Write down the settings that give this again."""
        (self.path / CONFIG).write_text(text, encoding="utf-8")

    @property
    def failure(self) -> str:
        """Why the job failed; empty where it did not."""
        return failure_in(self.path)

    def set_failure(self, reason: str) -> None:
        """Write down why the job failed, or with an empty reason that it did not."""
        if reason:
            (self.path / FAILED).write_text(f"{reason}\n", encoding="utf-8")
        else:
            (self.path / FAILED).unlink(missing_ok=True)

    def back_to(self, clock: float) -> None:
        """Take back what was written after this time: it will happen again."""
        for name in COLUMNS:
            columns = self._head(name)
            kept = [row for row in self.rows(name) if float(row["clock"]) <= clock]
            self.table(name, columns, [[row[column] for column in columns] for row in kept])

    def round(self, report: RoundReport, clock: float) -> None:
        """Add a round."""
        measures = [report.quality.get(name, "") for name in MEASURES]
        # A folder that was begun before there were more figures has no columns for them.
        more = self._head(ROUNDS)[len(COLUMNS[ROUNDS]) :]
        figures = [(report.figures or {}).get(name, "") for name in more]
        self._add(ROUNDS, (
            report.round, report.accuracy, report.loss, report.tours, report.visits, report.lost, report.traffic,
            report.seconds, clock, *measures, *figures,
        ))  # fmt: skip
        self.flush()

    def flush(self) -> None:
        """Have all that was added in the files, however this process ends."""
        for file in self._files.values():
            file.flush()

    def visit(self, seen: EndedVisit) -> None:
        """Add a visit."""
        it = seen.report
        self._add(VISITS, (
            seen.at, seen.site, seen.tour, it.device, it.hop, it.status, it.reason, it.samples, it.norm,
            it.metrics.get("loss", ""), it.seconds, seen.down, seen.up,
        ))  # fmt: skip

    def rows(self, name: str) -> list[dict[str, str]]:
        """The rows of one of its tables."""
        if name in self._files:
            self._files[name].flush()
        with (self.path / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a whole table."""
        write_table(self.path / name, columns, rows)

    def close(self) -> None:
        """Close the tables; what was added is on the disk."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _head(self, name: str) -> list[str]:
        """The columns of one of its tables."""
        with (self.path / name).open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file), list(COLUMNS[name]))

    def _add(self, name: str, row: Sequence[Any]) -> None:
        if name not in self._files:
            self._files[name] = (self.path / name).open("a", newline="", encoding="utf-8")
        csv.writer(self._files[name]).writerow(row)


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a whole table into a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def free(path: Path) -> Path:
    """The path, with a number if it is taken."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def failure_in(folder: Path) -> str:
    """Why the job of a folder failed; empty where it did not."""
    try:
        with (folder / FAILED).open(encoding="utf-8", errors="replace") as file:
            return file.read(FAILURE_ROOM).strip() or "the job failed"
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """What a result depends on besides its settings."""
    found = {"sojourn": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
