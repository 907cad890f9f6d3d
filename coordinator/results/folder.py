"""The result folder of a simulation or a job: settings to run it again, tables, the model, and pictures."""

from __future__ import annotations

import csv
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from coordinator.results.job_metrics import MEASURES, TaskMetrics, task_in
from sojourn import __version__
from sojourn.errors import ConfigError
from sojourn.protocol.wire import RoundReport, VisitReport
from sojourn.settings import dumps, parse

Rows = Sequence[Mapping[str, str]]
"""A table as it is read: each row is a mapping from column names."""

ROUNDS, VISITS, CONFIG, LOG = "rounds.csv", "visits.csv", "config.toml", "log.txt"
FAILED = "failed.txt"
"""The file with the reason why the job failed; it exists only if the job failed."""
FAILURE_ROOM = 20_000
"""The maximum number of its characters that are read."""
HOME = Path("simulations")
"""The default folder of results."""
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
    """A visit that ended: its time, tour, site and report.

    down, up: the bytes on the device's link since its previous visit; 0 if they were not counted.
    """

    at: float
    site: str
    tour: str
    report: VisitReport
    down: int = 0
    up: int = 0


class ResultFolder:
    """The result tables of a simulation or a job, written while it runs, so they exist however it ends."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path} is a file: choose a folder for the results")
        if path.exists() and any(path.iterdir()) and not resume:
            raise ConfigError(
                f"{path} is not empty: choose another folder; `sojourn simulate` and `sojourn compare` continue a run "
                "with --resume FOLDER"
            )
        if resume and not (path / CONFIG).exists():
            raise ConfigError(f"{path} has no {CONFIG}: there is no run to continue")
        self.path = path
        self._files: dict[str, TextIO] = {}

    def open(self) -> None:
        """Make the folder, if it does not exist."""
        self.path.mkdir(parents=True, exist_ok=True)

    def begin(self, settings: str, made_by: Mapping[str, str] | None = None) -> None:
        """Write the settings that reproduce this run, and the versions of its software, by default of this process."""
        self.settings(settings)
        (self.path / "versions.toml").write_text(dumps(dict(made_by or versions())), encoding="utf-8")
        more = {ROUNDS: self.task.more}
        for name, columns in COLUMNS.items():
            self.table(name, (*columns, *more.get(name, ())), ())

    @cached_property
    def task(self) -> TaskMetrics:
        """The task's metrics."""
        return task_in(parse((self.path / CONFIG).read_text(encoding="utf-8"), CONFIG))

    def settings(self, text: str) -> None:
        """Write the settings that reproduce this run."""
        (self.path / CONFIG).write_text(text, encoding="utf-8")

    @property
    def failure(self) -> str:
        """Why the job failed; empty if it did not."""
        return failure_in(self.path)

    def set_failure(self, reason: str) -> None:
        """Write why the job failed; an empty reason removes the file."""
        if reason:
            (self.path / FAILED).write_text(f"{reason}\n", encoding="utf-8")
        else:
            (self.path / FAILED).unlink(missing_ok=True)

    def back_to(self, clock: float) -> None:
        """Remove all rows after this time, because the run repeats from there."""
        for name in COLUMNS:
            columns = self._head(name)
            kept = [row for row in self.rows(name) if float(row["clock"]) <= clock]
            self.table(name, columns, [[row[column] for column in columns] for row in kept])

    def round(self, report: RoundReport, clock: float) -> None:
        """Add a round."""
        measures = [report.quality.get(name, "") for name in MEASURES]
        # A folder that an older version began has no columns for newer metrics.
        more = self._head(ROUNDS)[len(COLUMNS[ROUNDS]) :]
        metrics = [report.metrics.get(name, "") for name in more]
        self._add(ROUNDS, (
            report.round, report.accuracy, report.loss, report.tours, report.visits, report.lost, report.traffic,
            report.seconds, clock, *measures, *metrics,
        ))  # fmt: skip
        self.flush()

    def flush(self) -> None:
        """Flush all rows to the files, so that they survive the end of this process."""
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
        """Return the rows of a table."""
        if name in self._files:
            self._files[name].flush()
        with (self.path / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def table(self, name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a whole table."""
        write_table(self.path / name, columns, rows)

    def close(self) -> None:
        """Close the tables; all added rows are in the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _head(self, name: str) -> list[str]:
        """Return the columns of a table."""
        with (self.path / name).open(newline="", encoding="utf-8") as file:
            return next(csv.reader(file), list(COLUMNS[name]))

    def _add(self, name: str, row: Sequence[Any]) -> None:
        if name not in self._files:
            self._files[name] = (self.path / name).open("a", newline="", encoding="utf-8")
        csv.writer(self._files[name]).writerow(row)


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a whole table to a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def free(path: Path) -> Path:
    """Return the path, with a number if it exists."""
    number, found = 1, path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def failure_in(folder: Path) -> str:
    """Return why the job of a folder failed; empty if it did not."""
    try:
        with (folder / FAILED).open(encoding="utf-8", errors="replace") as file:
            return file.read(FAILURE_ROOM).strip() or "the job failed"
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions that a result depends on, in addition to its settings."""
    found = {"sojourn": __version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
