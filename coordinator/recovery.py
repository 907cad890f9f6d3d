"""Recover an incomplete state: decide which records still follow it, and continue without missing blobs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from coordinator.audit_records import AuditRecorded
from coordinator.fleet_records import DeviceForgotten, FleetChanged
from coordinator.job_state import JobState
from coordinator.records import (
    ENDED,
    DevicesEstimated,
    JobCompiled,
    JobContinued,
    JobEnded,
    JobMandated,
    JobRecord,
    JobRemoved,
    JobStarted,
    JobSubmitted,
    JobWaits,
    LegPassed,
    MandateWithdrawn,
    Record,
    RoundClosed,
    RoundFailed,
    RoundMeasured,
    RoundPlanned,
    RoundsKept,
    TourArrived,
    TourGivenUp,
    TourMoved,
)
from coordinator.rollout_records import DeviceReported, RolloutBegun, RolloutRecord
from coordinator.state import CoordinatorState
from sojourn.logs import ordinal
from sojourn.protocol.wire import Ref

RESTORE = "restore a backup (sojourn coordinator restore)"


def validation_error(durable: CoordinatorState, record: Record) -> str | None:
    """Return why a record does not follow the current state, if an earlier one is missing."""
    if isinstance(
        record, JobSubmitted | RolloutBegun | FleetChanged | DeviceForgotten | MandateWithdrawn | AuditRecorded
    ):
        return None
    if isinstance(record, RolloutRecord):
        line = durable.lines.get(record.line)
        if line is None or (line.over and not isinstance(record, DeviceReported)):
            return f"its rollout of {record.line!r} is missing"
        return None
    state = durable.jobs.get(record.job)
    if state is None:
        return f"its job {record.job!r} is missing: submit that again"
    return None if _follows(state, record) else f"an earlier record of the job {record.job!r} is missing"


def _follows(state: JobState, record: JobRecord) -> bool:  # noqa: C901, PLR0912  # one short case for each record
    """Return whether a record fits the job's current step, or contains the result of a later round.

    Using a later result is better than going back to the missing record, since models of earlier rounds are not stored.
    """
    numbers = {tour.number for tour in state.tours}
    if isinstance(record, JobContinued | RoundsKept | JobMandated):
        return True
    if isinstance(record, RoundMeasured):
        return state.evaluation_pending and record.round == len(state.history)
    if state.status in ENDED or isinstance(record, JobRemoved):
        return state.status in ENDED and isinstance(record, JobRemoved)
    match record:
        case JobStarted():
            return state.status == "queued"
        case JobCompiled():
            return state.kit is None
        case JobWaits() | RoundPlanned():
            return state.kit is not None and not numbers
        case LegPassed():
            return bool(numbers) and record.leg == state.leg + 1
        case TourArrived():
            return record.toured.tour.number in numbers
        case TourMoved():
            return record.tour.number in numbers
        case TourGivenUp():
            return record.number in numbers
        case RoundFailed():
            return state.kit is not None
        case DevicesEstimated():
            return state.kit is not None and (not numbers or state.phase == "estimate")
        case RoundClosed():
            return state.kit is not None and record.report.round >= state.round
        case JobEnded():
            return record.status != "done" or state.completion_reason() is not None
        case _:
            return True


def drop_missing_blobs(durable: CoordinatorState, missing: AbstractSet[bytes]) -> list[str]:
    """Continue without missing blobs: request results again, or end the jobs that cannot continue."""
    lost: list[str] = []
    for state in durable.jobs.values():
        lost += _job_without(state, missing)
    for line in durable.lines.values():
        if line.live() & missing:
            lost.append(f"the release {line.line!r} is missing, so no more devices get it: roll it out again")
    return lost


def _job_without(state: JobState, missing: AbstractSet[bytes]) -> list[str]:
    lost = []
    again = [
        at for at, toured in state.arrived.items() if missing & _digests([*toured.vectors.values(), toured.reports])
    ]
    for number in again:
        del state.arrived[number]
        lost.append(f"the result of tour {ordinal(number)} of job {state.name!r} is missing; it is requested again")
    if again:  # the site has completed the current attempt and would not repeat it
        state.renumber(0)
    unknown = [device for device, ref in state.weights.items() if ref.digest in missing]
    for device in unknown:
        del state.weights[device]
        state.signatures.pop(device, None)
        lost.append(f"the estimate of {device} for job {state.name!r} is missing; it is estimated again")
    lost += _rounds_without(state, missing)
    if not state.live() & missing:
        return lost
    return [*lost, _compiled_again(state) if _may_begin_again(state) else _ended(state)]


def _rounds_without(state: JobState, missing: AbstractSet[bytes]) -> list[str]:
    """Drop missing models of earlier rounds; the job continues without them."""
    gone = [number for number, ref in state.kept.items() if ref.digest in missing]
    if gone:
        state.kept = {number: ref for number, ref in state.kept.items() if number not in gone}
    if (it := state.unmerged) and _digests([*it.vectors.values(), *it.wire_vectors.values()]) & missing:
        state.unmerged = None
    return [f"the model of round {number} of job {state.name!r} is missing" for number in gone]


def _may_begin_again(state: JobState) -> bool:
    """Return whether no round was closed: then compiling again restores everything that is missing."""
    return state.status not in ENDED and not state.history and not state.tours


def _compiled_again(state: JobState) -> str:
    state.kit, state.status, state.detail = None, "queued", ""
    return f"the compiled model of job {state.name!r} is missing; it is compiled again"


def _ended(state: JobState) -> str:
    """End a job whose model is missing, with a reason; if it is already over, only its exports are lost."""
    gone = f"its model or its compiled kit is missing from the disk: {RESTORE}, or submit it again"
    if state.status in ENDED:
        return f"job {state.name!r}: {gone}"
    state.apply(JobEnded(state.name, "refused", gone))
    return f"job {state.name!r} is refused: {gone}"


def _digests(refs: list[Ref]) -> set[bytes]:
    return {ref.digest for ref in refs}
