"""Reads the tables of a result folder while they grow; rows are checked like a coordinator's messages."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import Any, get_args

import msgspec

from coordinator.results.folder import CONFIG, FAILED, ROUNDS, VISITS
from coordinator.results.job_metrics import MEASURES, PLAIN, task_in
from coordinator.results.visit_totals import DEVICES
from sojourn.errors import ConfigError
from sojourn.protocol.limits import MAX_BYTES, MAX_COUNT, MAX_HOPS, MAX_NUMBER, MAX_SECONDS
from sojourn.protocol.operator_messages import VisitNote
from sojourn.protocol.wire import RoundReport, VisitStatus
from sojourn.settings import parse
from sojourn.text import clean

MAX_FILE_BYTES = 64 << 20
"""Maximum number of bytes read from one file; of a larger file, only the end is read."""
CELL = 4000
"""Maximum number of characters of a cell; longer cells are cut."""


class TableTail:
    """Reads the rows that were appended to a table since the last call.

    cut: whether the beginning was skipped. A file that became smaller, as after a simulation is resumed, is read from
    its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._columns: list[str] = []
        self.cut = False

    @property
    def exists(self) -> bool:
        """Whether the file exists."""
        return self._path.exists()

    def state(self) -> tuple[int, int]:
        """Return a value that changes when the file does."""
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def news(self) -> tuple[list[dict[str, str]], bool]:
        """Return the new rows, and whether they replace all earlier rows."""
        replaced = self.state()[1] < self._offset
        if replaced:
            self._offset, self._columns, self.cut = 0, [], False
        if not self.exists:
            return [], replaced
        with self._path.open("rb") as file:
            if not self._columns:
                self._head(file.readline())
                self._offset = file.tell()
            size = file.seek(0, io.SEEK_END)
            if size - self._offset > MAX_FILE_BYTES:
                self._offset, self.cut = size - MAX_FILE_BYTES, True
            file.seek(self._offset)
            if self.cut and self._offset == size - MAX_FILE_BYTES:
                self._offset += len(file.readline())  # the rest of a line
            data = _whole_lines(file.read())
        self._offset += len(data)
        return self._rows(data), replaced

    def _head(self, line: bytes) -> None:
        self._columns = next(csv.reader([line.decode("utf-8", "replace")]), [])

    def _rows(self, data: bytes) -> list[dict[str, str]]:
        text = io.StringIO(data.decode("utf-8", "replace"), newline="")
        rows = csv.reader(text)
        return [
            dict(zip(self._columns, (cell[:CELL] for cell in row), strict=False))
            for row in rows
            if len(row) >= len(self._columns)
        ]


def _whole_lines(data: bytes) -> bytes:
    """Return the text up to the last complete line; quoted cells may contain line breaks."""
    end = data.rfind(b"\n") + 1
    while end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, end - 1) + 1
    return data[:end]


NAME, REASON = 63, 500
"""Maximum number of characters of a name, and of a reason."""
STATUSES: tuple[VisitStatus, ...] = get_args(VisitStatus)


def round_of(row: Mapping[str, str], more: Sequence[str]) -> RoundReport | None:
    """Parse a row of `rounds.csv` with the metrics `more`; None if it is invalid."""
    try:
        number = _whole(row["round"], MAX_COUNT)
        tours, visits, lost = (_whole(row[key], MAX_COUNT) for key in ("tours", "visits", "lost"))
        traffic = _whole(row["bytes"], MAX_BYTES)
        seconds, clock = (_within(row[key], MAX_SECONDS) for key in ("seconds", "clock"))
    except (KeyError, ValueError, OverflowError):
        return None
    accuracy, loss = (_metric(row.get(name, "")) for name in PLAIN)
    quality = {name: value for name in MEASURES if math.isfinite(value := _metric(row.get(name, "")))}
    metrics = {name: _metric(row.get(name, "")) for name in more}
    return RoundReport(number, accuracy, loss, tours, visits, lost, traffic, seconds, quality, (), clock, metrics)


def visit_of(row: Mapping[str, str]) -> VisitNote | None:
    """Parse a row of `visits.csv`; None if it is invalid."""
    try:
        job, round_, tour = row["tour"].rsplit("/", 2)
        status = next(it for it in STATUSES if it == row["status"])
        loss = _metric(row["loss"])
        return VisitNote(
            _within(row["clock"], MAX_SECONDS),
            _name(job),
            _whole(round_, MAX_COUNT),
            "train",
            _whole(tour, MAX_COUNT),
            _whole(row["hop"], MAX_HOPS),
            _name(row["site"]),
            _name(row["device"]),
            status,
            intern(clean(row["reason"], REASON)),
            _whole(row["samples"], MAX_COUNT),
            _within(row["seconds"], MAX_SECONDS),
            loss if math.isfinite(loss) else None,
        )
    except (KeyError, ValueError, OverflowError, StopIteration):
        return None


@lru_cache(10_000)
def _name(text: str) -> str:
    return intern(clean(text, NAME))


def _whole(text: str, limit: int) -> int:
    return min(max(0, int(text)), limit)


def _within(text: str, limit: float) -> float:
    """Parse a number and clamp it to 0 ... `limit`; raise ValueError if it is not a number."""
    value = float(text)
    if math.isnan(value):
        raise ValueError("not a number")
    return min(max(0.0, value), limit)


def _metric(text: str) -> float:
    """Parse a metric; an empty cell is NaN."""
    try:
        value = float(text or "nan")
    except ValueError:
        return math.nan
    return value if abs(value) <= MAX_NUMBER else math.nan


MAX_VISITS = 100_000
"""Maximum number of visits kept in memory; the newest are kept."""
MAX_ROUNDS = 20_000
CONFIG_BYTES = 1 << 20


class FolderTables:
    """The tables of one folder. unread: the number of invalid rows; forgotten: whether older visits were dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = _config(path)
        self.task = task_in(self.config)
        self._tails = {name: TableTail(path / name) for name in (ROUNDS, VISITS)}
        self.rounds: list[RoundReport] = []
        self.visits: list[VisitNote] = []
        self.unread = 0
        self.forgotten = False

    def state(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes when a table changes or the job fails."""
        return *(tail.state() for tail in self._tails.values()), (int((self.path / FAILED).exists()), 0)

    @property
    def has_visits(self) -> bool:
        """Whether there is a table of visits."""
        return self._tails[VISITS].exists

    def read(self) -> None:
        """Read new rows."""
        rows, replaced = self._tails[ROUNDS].news()
        found = [round_of(row, self.task.more) for row in rows]
        self.rounds = [*([] if replaced else self.rounds), *(it for it in found if it)][-MAX_ROUNDS:]
        self.unread += sum(it is None for it in found)
        new, visits_replaced = self._tails[VISITS].news()
        if visits_replaced:
            self.visits.clear()
        self._add_visits([visit_of(row) for row in new])

    def _add_visits(self, found: list[VisitNote | None]) -> None:
        self.unread += sum(it is None for it in found)
        self.visits += [it for it in found if it]
        self.forgotten |= self._tails[VISITS].cut or len(self.visits) > MAX_VISITS
        del self.visits[:-MAX_VISITS]
        self._mark_estimates()

    def _mark_estimates(self) -> None:
        """Mark visits that only estimated: the last tours of a round trained, as many as the round's row lists.

        Tour numbers continue through a round, and devices are estimated before the round is planned.
        """
        tours: dict[int, set[int]] = {}
        for visit in self.visits:
            tours.setdefault(visit.round, set()).add(visit.tour)
        planned = {it.round: it.tours for it in self.rounds}
        first = {number: sorted(seen)[-planned.get(number, len(seen)) or 0 :][0] for number, seen in tours.items()}
        self.visits = [
            msgspec.structs.replace(it, phase="estimate") if it.phase == "train" and it.tour < first[it.round] else it
            for it in self.visits
        ]

    def devices(self) -> dict[str, str]:
        """Return all devices and their sites, as far as they are known."""
        sites = {it.device: it.site for it in self.visits}
        rows, _ = TableTail(self.path / DEVICES).news()
        names = [clean(row.get("device", ""), NAME) for row in rows]
        return {name: sites.get(name, "") for name in dict.fromkeys([*names, *sites])}


def _config(path: Path) -> dict[str, Any]:
    """Read the settings of the run; raise ConfigError if the folder is not a result folder."""
    file = path / CONFIG
    if not path.is_dir():
        raise ConfigError(f"--results {path}: there is no such folder")
    missing = [name for name in (CONFIG, ROUNDS) if not (path / name).is_file()]
    if missing:
        raise ConfigError(
            f"--results {path}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: name a folder "
            "written by `sojourn simulate`, `compare`, `plan` or `job report`"
        )
    if file.stat().st_size > CONFIG_BYTES:
        raise ConfigError(f"--results {path}: {CONFIG} is larger than the limit for job files")
    return parse(file.read_text(encoding="utf-8", errors="replace"), str(file))
