"""A folder of results as a source of the pages: one job, its rounds, visits and devices."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.console.following import JobProgress
from coordinator.results.folder import ROUNDS, VISITS, failure_in
from coordinator.results.task_figures import name_in
from coordinator.results.what_was_run import what_was_run
from fleet_web.folder.folder_tables import FolderTables
from fleet_web.source import Reach, Topic
from sojourn.errors import UserError
from sojourn.protocol.fleet_messages import FleetDevice, LastVisit, VisitNote
from sojourn.protocol.wire import JobTimes, JobView
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.fleet_messages import FleetChange
    from sojourn.protocol.release import Card, LineView, Parcel
    from sojourn.protocol.wire import JobStatus

LOOK = 1.0
"""Seconds between two looks at whether a table has grown."""
FRESH = 120.0
"""Seconds after its last round for which a simulation that is not done may be under way."""
WORDS = 500
MODEL = "model.onnx"


class FolderSource:
    """What lies in one folder; read when it is first asked for, and again when it has grown."""

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
        """Where it is."""
        return self._tables.path

    def reach(self) -> Reach:
        """A folder can always be asked."""
        return Reach(here=True)

    def mark(self, topic: Topic) -> int:  # noqa: ARG002  # all of it lies in the same tables
        """A number that rises when the tables have grown."""
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
        """What the run's own clock said last."""
        rounds = self._tables.rounds
        return float(rounds[-1].ended) if rounds else 0.0  # type: ignore[arg-type]

    def gaps(self) -> list[str]:
        """What this folder does not tell, and why."""
        tables, found = self._tables, []
        if not tables.has_visits:
            found.append(f"There is no {VISITS} here, so where the models went is not known.")
        elif tables.forgotten:
            found.append(f"{VISITS} is long: the tours of the first rounds are left out.")
        if tables.unread:
            found.append(f"{tables.unread:,} rows of {ROUNDS} and {VISITS} cannot be read and are left out.")
        return found

    async def devices(self) -> Sequence[FleetDevice]:
        """Every device that the run had."""
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
        """One of them."""
        found = next((it for it in await self.devices() if it.device == name), None)
        if found is None:
            raise UserError(f"{self.name} has no device {clean(name, WORDS)!r}")
        return found

    async def visits(self, device: str | None = None, job: str | None = None, last: int = 200) -> Sequence[VisitNote]:
        """The last visits, the newest first."""
        self.mark("jobs")
        found = [
            it
            for it in reversed(self._tables.visits)
            if (device is None or it.device == device) and (job is None or it.job == job)
        ]
        return found[:last]

    async def changes(self, device: str | None = None, last: int = 200) -> Sequence[FleetChange]:  # noqa: ARG002
        """Comings and goings are not in a folder."""
        return ()

    async def jobs(self) -> Sequence[JobView]:
        """The one job that there is."""
        self.mark("jobs")
        return [self._view()]

    async def job(self, name: str) -> JobProgress:
        """The job with its whole history."""
        self.mark("jobs")
        view = self._view()
        if name != view.job:
            raise UserError(f"{self.name} holds the job {view.job!r}, and none called {clean(name, WORDS)!r}")
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
            times=JobTimes(0.0, None, last.ended if last else 0.0, kind, last.figures if last else {}),  # type: ignore[arg-type]
        )

    def _status(self, done: int, planned: int) -> tuple[JobStatus, str]:
        """How it stands; a simulation that was interrupted says nothing, it only writes no more."""
        what = clean(what_was_run(self._tables.config), WORDS)
        if failure := failure_in(self.path):
            return "failed", clean(failure, WORDS)
        if (self.path / MODEL).exists() or done >= planned:
            return "done", what
        written = self._tables.state()[0][0] / 1e9
        if time.time() - written < FRESH:
            return "running", what
        return "stopped", f"{what} It was interrupted: `sojourn simulate --resume` goes on with it."

    async def lines(self) -> Sequence[LineView]:
        """Releases are not in a folder."""
        return ()

    async def line(self, name: str) -> LineView:
        """Releases are not in a folder."""
        raise UserError(f"{self.name} is a folder of results: it has no model line {clean(name, WORDS)!r}")

    async def card(self, line: str, version: int) -> tuple[Card, Parcel]:
        """Releases are not in a folder."""
        raise UserError(f"{self.name} is a folder of results: it has no release {clean(line, WORDS)!r} {version}")

    async def acts(self, last: int = 200) -> Sequence[AuditEntry]:  # noqa: ARG002
        """Acts of operators are not in a folder."""
        return ()
