"""The jobs of a running coordinator as runs: it is told of every record that is written, and looks what is new."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, cast

from coordinator.records import (
    ENDED,
    JobContinued,
    JobEnded,
    JobRemoved,
    JobStarted,
    RoundClosed,
    RoundMeasured,
)
from coordinator.tracking.frames import RunBegun, RunEnded
from coordinator.tracking.runs import params_of, round_of, settings_of, tags_of
from sojourn.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coordinator.state import CoordinatorState, JobState
    from coordinator.tracking.frames import Frame, Outcome

DETAIL = 500
"""Characters of how a job ended."""
LATELY = 86_400.0
"""Seconds."""
NEWS = (JobStarted, JobContinued, JobEnded, RoundClosed, RoundMeasured)
"""The records after which there may be something to track."""


class LiveJobs:
    """What was told of each job, and what is to be told next; without a file of its own."""

    def __init__(
        self,
        fleet: str,
        cloud: str,
        store: str,
        tell: Callable[[Frame], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`store` is where the models are, for a tag; `wall` is a clock that shows seconds since 1970."""
        self._tell, self._wall = tell, wall
        self._tags = {"kind": "live", "fleet": fleet, "coordinator": cloud, "folder": store}
        self._rounds: dict[str, int] = {}
        """How many rounds were told of each job."""
        self._over: set[str] = set()
        """The jobs whose end was told."""

    def start(self, state: CoordinatorState) -> None:
        """Go on with the jobs that are under way; what was tracked of them is not tracked twice.

        Those that have ended lately are told again: the coordinator may have stopped before all was written.
        """
        oldest = self._wall() - LATELY
        for job in state.jobs.values():
            if job.status != "queued" and (job.status not in ENDED or (job.ended or 0.0) > oldest):
                self._look_at(job)

    def wrote(self, record: Any, state: CoordinatorState) -> None:
        """A record was written, and the state has it."""
        if isinstance(record, JobRemoved):
            self._rounds.pop(record.job, None)
            self._over.discard(record.job)
        elif isinstance(record, NEWS) and (job := state.jobs.get(record.job)):
            self._look_at(job)

    def _look_at(self, job: JobState) -> None:
        """Tell what is new: a job, rounds that have their figures, an end.

        The state may be ahead of the record: what follows from an event is written after all of it is known.
        """
        if job.status in ENDED and job.name in self._over:
            return
        run = run_id(self._tags["fleet"], self._tags["coordinator"], job)
        if job.name not in self._rounds or job.name in self._over:  # it is new, or goes on with more rounds
            self._over.discard(job.name)
            settings = job.settings
            params, tags = params_of(settings_of(settings)), {**tags_of(settings), **self._tags}
            self._tell(RunBegun(run, job.name, job.submitted or self._wall(), params, tags))
        told, tested = self._rounds.get(job.name, 0), len(job.history) - bool(job.unmeasured)
        for report in job.history[told:tested]:
            self._tell(round_of(run, report, report.ended or self._wall()))
        self._rounds[job.name] = tested
        if job.status in ENDED and not job.unmeasured:
            outcome = cast("Outcome", job.status)
            self._tell(RunEnded(run, outcome, clean(job.detail, DETAIL), job.ended or self._wall()))
            self._over.add(job.name)


def run_id(fleet: str, cloud: str, job: JobState) -> str:
    """A job's run, for all its life: another job of the same name has another ticket."""
    return hashlib.sha256(f"{fleet}\n{cloud}\n{job.name}\n{job.ticket}".encode()).hexdigest()[:32]
