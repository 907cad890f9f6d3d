"""The life of a job as a table: which step follows which event.

A job's step is not stored: it follows from its durable state (`step_of`), both during a run and after a restart. The
record of an event moves the job to the step that the table names. Work that was in progress when the coordinator
stopped is started again. Work that failed because the disk was full is retried.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from sojourn.node.table import Table
from sojourn.protocol.wire import JobStatus

if TYPE_CHECKING:
    from coordinator.job_state import JobState


class JobStep(StrEnum):
    """The steps of a job."""

    QUEUED = "queued"
    COMPILING = "compiling"
    WAITING = "waiting"
    """No round is in progress: the first one is being planned, or devices are missing for the next one."""
    UNSIGNED = "unsigned"
    """Devices require a signature, and the job has none, its mandate has ended, or it covers fewer rounds."""
    TOURING = "touring"
    """Tours are out. If a site is lost, wait for it, move its tour to another site, or give the tour up."""
    PASSING = "passing"
    """The results of one leg become the input of the next."""
    CLOSING = "closing"
    """The round's tours become the next model, or an estimation's results become estimates of devices."""
    PLANNING = "planning"
    """A round or an estimation is closed: the next one is being planned."""
    DONE = "done"
    STOPPED = "stopped"
    REFUSED = "refused"
    FAILED = "failed"


class JobEvent(StrEnum):
    """The events of a job."""

    ITS_TURN = "its turn"
    ITS_TURN_AGAIN = "its turn again"
    """The job was compiled before."""
    COMPILED = "compiled"
    PLANNED = "planned"
    DEVICES_MISSING = "devices missing"
    SIGNATURE_MISSING = "signature missing"
    SIGNED = "signed"
    """An operator signed the job, or this coordinator no longer requires a signature."""
    TOUR_OVER = "tour over"
    """One of several tours is complete, or was given up."""
    SITE_LOST = "site lost"
    LEG_OVER = "leg over"
    """The last tour of a leg is complete, and another leg follows."""
    ALL_OVER = "all tours over"
    LEG_PASSED = "leg passed"
    ROUND_CLOSED = "round closed"
    ROUND_FAILED = "round failed"
    """No visit succeeded: the job waits, and then the same round is planned again."""
    DEVICES_ESTIMATED = "devices estimated"
    NO_ROOM = "no room"
    WORK_FAILED = "work failed"
    TIMEOUT = "timeout"
    ROUNDS_FAILED = "rounds failed"
    COMPLETE = "complete"
    STOP = "stop"
    """Operators may stop a job at any time."""
    CONTINUE = "continue"
    """An operator resumes a job that is over: it waits for its turn, with its state unchanged."""


ENDS: dict[JobStep, JobStatus] = {
    JobStep.DONE: "done",
    JobStep.STOPPED: "stopped",
    JobStep.REFUSED: "refused",
    JobStep.FAILED: "failed",
}
"""The steps at which a job is over, with the status that the record of its end has."""

At, On = JobStep, JobEvent
JOB = Table(
    "job",
    {
        (At.QUEUED, On.ITS_TURN): At.COMPILING,
        (At.QUEUED, On.ITS_TURN_AGAIN): At.WAITING,
        (At.QUEUED, On.STOP): At.STOPPED,
        (At.COMPILING, On.COMPILED): At.WAITING,
        (At.COMPILING, On.NO_ROOM): At.COMPILING,
        (At.COMPILING, On.WORK_FAILED): At.REFUSED,
        (At.COMPILING, On.STOP): At.STOPPED,
        (At.WAITING, On.PLANNED): At.TOURING,
        (At.WAITING, On.DEVICES_MISSING): At.WAITING,
        (At.WAITING, On.SIGNATURE_MISSING): At.UNSIGNED,
        (At.WAITING, On.NO_ROOM): At.WAITING,
        (At.WAITING, On.WORK_FAILED): At.REFUSED,
        (At.WAITING, On.TIMEOUT): At.FAILED,
        (At.WAITING, On.ROUNDS_FAILED): At.FAILED,
        (At.WAITING, On.STOP): At.STOPPED,
        (At.UNSIGNED, On.SIGNED): At.WAITING,
        (At.UNSIGNED, On.STOP): At.STOPPED,
        (At.TOURING, On.TOUR_OVER): At.TOURING,
        (At.TOURING, On.SITE_LOST): At.TOURING,
        (At.TOURING, On.LEG_OVER): At.PASSING,
        (At.TOURING, On.ALL_OVER): At.CLOSING,
        (At.TOURING, On.STOP): At.STOPPED,
        (At.PASSING, On.LEG_PASSED): At.TOURING,
        (At.PASSING, On.NO_ROOM): At.PASSING,
        (At.PASSING, On.WORK_FAILED): At.REFUSED,
        (At.PASSING, On.STOP): At.STOPPED,
        (At.CLOSING, On.ROUND_CLOSED): At.PLANNING,
        (At.CLOSING, On.DEVICES_ESTIMATED): At.PLANNING,
        (At.CLOSING, On.ROUND_FAILED): At.WAITING,
        (At.CLOSING, On.NO_ROOM): At.CLOSING,
        (At.CLOSING, On.WORK_FAILED): At.REFUSED,
        (At.CLOSING, On.STOP): At.STOPPED,
        (At.PLANNING, On.PLANNED): At.TOURING,
        (At.PLANNING, On.DEVICES_MISSING): At.WAITING,
        (At.PLANNING, On.SIGNATURE_MISSING): At.UNSIGNED,
        (At.PLANNING, On.COMPLETE): At.DONE,
        (At.PLANNING, On.NO_ROOM): At.PLANNING,
        (At.PLANNING, On.WORK_FAILED): At.REFUSED,
        (At.PLANNING, On.STOP): At.STOPPED,
        (At.DONE, On.STOP): At.DONE,
        (At.STOPPED, On.STOP): At.STOPPED,
        (At.REFUSED, On.STOP): At.REFUSED,
        (At.FAILED, On.STOP): At.FAILED,
        (At.DONE, On.CONTINUE): At.QUEUED,
        (At.STOPPED, On.CONTINUE): At.QUEUED,
        (At.REFUSED, On.CONTINUE): At.QUEUED,
        (At.FAILED, On.CONTINUE): At.QUEUED,
    },
    start=At.QUEUED,
    ends=frozenset(ENDS),
    reopen=frozenset({On.CONTINUE}),
)


def step_of(state: JobState, *, gathered: bool) -> JobStep:
    """Return a job's step; `gathered` is whether every tour of the current leg is complete or given up."""
    match state.status:
        case "waiting":
            return JobStep.UNSIGNED if state.unsigned else JobStep.WAITING
        case "running" if not state.tours:
            return JobStep.PLANNING
        case "running" if not gathered:
            return JobStep.TOURING
        case "running":
            return JobStep.CLOSING if state.last_leg else JobStep.PASSING
        case status:
            return JobStep(status)
