"""The work in progress for the current job: one piece at a time, retried while the disk is full."""

from __future__ import annotations

from typing import Any

from coordinator.job_state import JobState
from coordinator.rounds.evaluation import MeasureRound
from sojourn.node.machine import CancelWork, StartWork, WorkDone, WorkFailed, WorkProgress

WORK_AGAIN = 15.0
"""Seconds after which work is retried that failed because the disk was full."""
MEASURE = "measure "
"""Prefix of the keys of model tests, which run in addition to the job's other work."""


def measure(state: JobState) -> StartWork:
    """Test the model of a job's newest round; only the metrics are kept."""
    return StartWork(f"{MEASURE}{state.name}", MeasureRound.newest(state), keeps=False)


class JobWork:
    """The piece of work in progress. Volatile: after a restart, the work follows from a job's step."""

    def __init__(self) -> None:
        self._work: StartWork | None = None
        self._job = ""
        self.progress = ""
        """The work's last progress report."""
        self._again_at: float | None = None
        """When to retry the work, if the disk was full."""
        self.no_room = ""
        """Why the work waits for disk space; empty if it does not."""
        self._held: WorkDone | None = None
        """The outcome, if it must wait for something else."""

    def start(self, verb: str, job: str, work: Any) -> StartWork:
        """Start a piece of work for a job; the previous one has ended."""
        self.done()
        self._work, self._job = StartWork(f"{verb} {job}", work), job
        return self._work

    def is_for(self, job: str) -> bool:
        """Return whether work for this job is in progress, or waits for disk space."""
        return self._work is not None and self._job == job

    def has_key(self, key: str) -> bool:
        """Return whether this is the key of the work in progress."""
        return self._work is not None and self._work.key == key

    @property
    def under_way(self) -> bool:
        """Whether any work is in progress."""
        return self._work is not None

    def note(self, event: WorkProgress) -> None:
        """Store a progress report, if it is from this work."""
        if self.has_key(event.key):
            self.progress = event.text

    def done(self) -> None:
        """The work has ended or failed: nothing is in progress."""
        self._work, self._job, self._again_at, self._held = None, "", None, None
        self.progress = self.no_room = ""

    def hold(self, event: WorkDone) -> None:
        """Keep an outcome that must wait."""
        self._held, self.no_room = event, ""

    def release(self, job: str) -> WorkDone | None:
        """Return the outcome that waited, if there is one for this job."""
        if not self.is_for(job):
            return None
        held, self._held = self._held, None
        return held

    def retry_later(self, event: WorkFailed, now: float) -> bool:
        """Retry the work later, since the disk was full. Returns whether this is the first failure."""
        news = not self.no_room
        self._again_at, self.no_room = now + WORK_AGAIN, event.detail
        return news

    def wake_at(self) -> float | None:
        """When the work is retried."""
        return self._again_at

    def due(self, now: float) -> list[StartWork]:
        """Return the work if it is time to retry it."""
        if self._work is None or self._again_at is None or self._again_at > now:
            return []
        self._again_at = None
        return [self._work]

    def cancel(self) -> list[CancelWork]:
        """Cancel the work of a job that is over, unless it has ended or waits."""
        running = self._work is not None and self._again_at is None and self._held is None
        cancels = [CancelWork(self._work.key)] if self._work and running else []
        self.done()
        return cancels
