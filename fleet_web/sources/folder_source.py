"""A folder of results as a data source: one job with its rounds, visits and devices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.console.job_progress import JobProgress
from coordinator.results.folder import CONFIG, ROUNDS, VISITS, failure_in
from coordinator.results.job_metrics import name_in
from coordinator.results.run_description import what_was_run
from fleet_web.sources.folder_tables import FolderTables
from fleet_web.sources.source import Reach, Topic
from sojourn.errors import UserError
from sojourn.protocol.operator_messages import FleetChange, FleetDevice, LastVisit, VisitNote
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.release import BlobRef, Card, LineView
from sojourn.protocol.wire import JobStatus, JobTimes, JobView
from sojourn.text import clean

LOOK = 1.0
"""Seconds between two checks whether a table has grown."""
FRESH = 120.0
"""Seconds after its last round during which an unfinished simulation counts as running."""
WORDS = 500
MODEL = "model.onnx"


class FolderSource:
    """The contents of one folder, read on first use and again when it has grown."""

    def __init__(self, path: Path, name: str) -> None:
        self._tables = FolderTables(path)
        self._name = name
        self._read: tuple[tuple[int, int], ...] | None = None
        self._looked = float("-inf")
        self._mark = 0

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._name

    @property
    def path(self) -> Path:
        """The folder's path."""
        return self._tables.path

    def reach(self) -> Reach:
        """A folder is always reachable."""
        return Reach(reachable=True)

    def mark(self, topic: Topic) -> int:  # noqa: ARG002  # all topics are in the same tables
        """Return a number that increases when the tables grow."""
        if time.monotonic() - self._looked >= LOOK:
            self._look()
        return self._mark

    def _look(self) -> None:
        self._looked = time.monotonic()
        state = self._tables.state()
        if state != self._read:
            self._tables.read()
            self._read = state
            self._mark += 1

    def now(self) -> float:
        """Return the last time on the run's clock."""
        rounds = self._tables.rounds
        return float(rounds[-1].ended) if rounds else 0.0  # type: ignore[arg-type]

    def gaps(self) -> list[str]:
        """Return which data this folder lacks, and why."""
        tables, found = self._tables, []
        if not tables.has_visits:
            found.append(f"The tours are unknown, because {VISITS} is missing.")
        elif tables.forgotten:
            found.append(f"{VISITS} is too long: the tours of the first rounds are not shown.")
        if tables.unread:
            found.append(f"{tables.unread:,} invalid rows of {ROUNDS} and {VISITS} were skipped.")
        return found

    async def devices(self) -> Sequence[FleetDevice]:
        """Return all devices of the run."""
        self.mark("fleet")
        counts: dict[str, list[int]] = {}
        last: dict[str, LastVisit] = {}
        for it in self._tables.visits:
            counts.setdefault(it.device, [0, 0])[it.status != "done"] += 1
            last[it.device] = LastVisit(it.at, it.job, it.round, it.phase, it.status, it.reason)
        found = []
        for name, site in sorted(self._tables.devices().items()):
            visits, failed = counts.get(name, (0, 0))
            found.append(FleetDevice(name, True, 0.0, 0.0, site, "", "", visits, failed, last.get(name)))
        return found

    async def device(self, name: str) -> FleetDevice:
        """Return one device."""
        found = next((it for it in await self.devices() if it.device == name), None)
        if found is None:
            raise UserError(f"{self.name} has no device {clean(name, WORDS)!r}")
        return found

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """Return the last visits, newest first."""
        self.mark("jobs")
        found = [
            it
            for it in reversed(self._tables.visits)
            if (device is None or it.device == device) and (job is None or it.job == job)
        ]
        return found[:last]

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:  # noqa: ARG002
        """Return no connection events; a folder does not record them."""
        return ()

    async def jobs(self) -> Sequence[JobView]:
        """Return the only job."""
        self.mark("jobs")
        return [self._view()]

    async def job(self, name: str) -> JobProgress:
        """Return the job with its whole history."""
        self.mark("jobs")
        view = self._view()
        if name != view.job:
            raise UserError(f"{self.name} contains the job {view.job!r}, not {clean(name, WORDS)!r}")
        return JobProgress(view, tuple(self._tables.rounds))

    def _view(self) -> JobView:
        tables, config = self._tables, self._tables.config
        rounds = tables.rounds
        last = rounds[-1] if rounds else None
        planned = config.get("rounds")
        planned = planned if isinstance(planned, int) and planned > 0 else len(rounds)
        status, detail = self._status(last.round if last else 0, planned)
        kind = tables.task.kind
        return JobView(
            clean(str(config.get("name", tables.path.name)), 63),
            clean(str(config.get("strategy", "visit")), WORDS),
            clean(str(name_in(config, "model") or "mlp"), WORDS),
            status,
            detail,
            last.round if last else 0,
            planned,
            "train",
            last.accuracy if last else float("nan"),
            len(tables.devices()),
            times=JobTimes(0.0, None, last.ended if last else 0.0, kind, last.metrics if last else {}),
        )

    def _status(self, done: int, planned: int) -> tuple[JobStatus, str]:
        """Return the job's status; an interrupted simulation leaves no mark, it only stops writing."""
        what = clean(what_was_run(self._tables.config), WORDS)
        if failure := failure_in(self.path):
            return "failed", clean(failure, WORDS)
        if (self.path / MODEL).exists() or done >= planned:
            return "done", what
        written = self._tables.state()[0][0] / 1e9
        if time.time() - written < FRESH:
            return "running", what
        return "stopped", f"{what} It was interrupted: resume it with `sojourn simulate --resume`."

    async def lines(self) -> Sequence[LineView]:
        """Return no model lines; a folder has no releases."""
        return ()

    async def line(self, name: str) -> LineView:
        """Raise an error; a folder has no releases."""
        raise UserError(f"{self.name} is a folder of results and has no model line {clean(name, WORDS)!r}")

    async def card(self, line: str, version: int) -> tuple[Card, BlobRef]:
        """Raise an error; a folder has no releases."""
        raise UserError(f"{self.name} is a folder of results and has no release {clean(line, WORDS)!r} {version}")

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:  # noqa: ARG002
        """Return no operator actions; a folder does not record them."""
        return ()


MAX_FOLDERS = 200
"""Maximum number of runs opened from a folder of runs."""


def open_all(folders: Iterable[Path]) -> list[FolderSource]:
    """Open folders as sources with distinct names.

    A folder that contains only folders of runs, such as the output of `sojourn compare`, opens all of these runs.
    """
    found: dict[str, FolderSource] = {}
    for folder in folders:
        for each in _runs_in(folder):
            name = free = _called(each)
            number = 1
            while free in found:
                number += 1
                free = f"{name}-{number}"
            found[free] = FolderSource(each, free)
    return list(found.values())


def _runs_in(folder: Path) -> list[Path]:
    if folder.is_dir() and not (folder / CONFIG).exists():
        runs = sorted(each.parent for each in folder.glob(f"*/{CONFIG}"))
        return runs[:MAX_FOLDERS] or [folder]
    return [folder]


def _called(folder: Path) -> str:
    return clean(folder.resolve().name, 63) or "results"
