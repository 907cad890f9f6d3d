"""A coordinator's durable state: its jobs and model lines. Only records change it (`coordinator.records`)."""

from __future__ import annotations

import msgspec

from coordinator import rollout_records
from coordinator.audit_records import AuditLog, AuditRecorded
from coordinator.fleet_records import DeviceForgotten, FleetChanged, FleetHistory
from coordinator.job_state import NUMBERS_SKIPPED, JobState
from coordinator.records import (
    ENDED,
    DevicesEstimated,
    JobContinued,
    JobRemoved,
    JobSubmitted,
    MandateWithdrawn,
    Record,
    RoundClosed,
    RoundFailed,
    withdrawn,
)
from coordinator.rollout_records import LineState, RolloutRecord
from sojourn.protocol.mandates import SignedWithdrawal

NAMES_REMEMBERED = 1000
"""Number of removed jobs to remember because devices may still have state for them; the oldest is dropped first."""


class CoordinatorState(msgspec.Struct):
    """The durable state of a coordinator: its jobs, oldest first, and its model lines."""

    jobs: dict[str, JobState] = {}
    lines: dict[str, LineState] = {}
    tours_before: int = 0
    """The first tour number of a new job, since a job that was lost or removed may be submitted again."""
    removed: dict[str, None] = {}
    """The removed jobs for which devices may still have state."""
    seen: FleetHistory = msgspec.field(default_factory=FleetHistory)
    """The history of all devices, and their visits."""
    withdrawals: dict[str, SignedWithdrawal] = {}
    """By job, the withdrawals of mandates that might still be valid."""
    audit: AuditLog = msgspec.field(default_factory=AuditLog)
    """The actions of operators."""

    def no_such_job(self, name: str) -> str:
        """Return that there is no job with this name, and which there are."""
        return f"there is no job {name!r}; the jobs are: {', '.join(self.jobs) or 'none'}"

    def apply(self, record: Record) -> None:
        """Change the state by one record."""
        if isinstance(record, AuditRecorded):
            self.audit.apply(record)
        elif isinstance(record, DeviceForgotten):
            self.seen.forget(record)
        elif isinstance(record, FleetChanged):
            self.seen.apply(record)
        elif isinstance(record, RolloutRecord):
            rollout_records.apply(self.lines, record)
        elif isinstance(record, MandateWithdrawn):
            self.withdrawals = withdrawn(self.withdrawals, record)
        elif isinstance(record, JobSubmitted):
            state = JobState(record.job, record.text, record.ticket, next_tour=self.tours_before, submitted=record.at)
            self.jobs[record.job] = state
        elif isinstance(record, JobRemoved):
            self._remove(self.jobs.pop(record.job), record)
        else:
            if isinstance(record, RoundClosed | RoundFailed | DevicesEstimated):
                self._remember_visits(record)
            ended = self.jobs[record.job].status in ENDED
            self.jobs[record.job].apply(record)
            if ended and isinstance(record, JobContinued):  # it goes to the end of the queue
                self.jobs[record.job] = self.jobs.pop(record.job)

    def _remember_visits(self, record: RoundClosed | RoundFailed | DevicesEstimated) -> None:
        """Record the outcomes of the visits of a round or an estimation."""
        state, phase = self.jobs[record.job], self.jobs[record.job].phase
        if not isinstance(record, RoundFailed):
            phase = "train" if isinstance(record, RoundClosed) else "estimate"
        self.seen.visited(record.at or 0.0, record.job, state.round, phase, record.visited)

    def _remove(self, state: JobState, record: JobRemoved) -> None:
        """Remember a removed job: sites have seen its tours, and devices may have state for it."""
        self.tours_before = max(self.tours_before, state.next_tour)
        if record.remembered:
            names = {**self.removed, state.name: None}
            self.removed = dict.fromkeys(list(names)[-NAMES_REMEMBERED:])

    def renumber(self, boots: int) -> None:
        """Number new tours above those that sites have seen; `boots` is higher than ever before.

        These numbers seed no randomness: repeated work gives the same bits, unless devices have state.
        """
        self.tours_before = max(self.tours_before + NUMBERS_SKIPPED, boots)
        for state in self.jobs.values():
            state.renumber(boots)

    @property
    def unfinished(self) -> list[JobState]:
        """The jobs that have not ended, oldest first."""
        return [state for state in self.jobs.values() if state.status not in ENDED]
