"""A coordinator's state of which pieces are missing: which records still follow it, and what goes on without blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from coordinator.audit_records import ActLogged
from coordinator.fleet_records import DeviceForgotten, FleetChanged
from coordinator.mandate_records import JobMandated, MandateWithdrawn
from coordinator.records import (
    ENDED,
    DevicesEstimated,
    JobCompiled,
    JobContinued,
    JobEnded,
    JobRemoved,
    JobStarted,
    JobSubmitted,
    JobWaits,
    LegPassed,
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
from sojourn.about import ordinal

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from coordinator.records import JobRecord, Record
    from coordinator.state import CoordinatorState, JobState
    from sojourn.protocol.wire import Ref

RESTORE = "restore a backup (sojourn coordinator restore)"


def objection(durable: CoordinatorState, record: Record) -> str | None:
    """Why a record does not follow the state that is here, where an earlier one is missing."""
    if isinstance(record, JobSubmitted | RolloutBegun | FleetChanged | DeviceForgotten | MandateWithdrawn | ActLogged):
        return None
    if isinstance(record, RolloutRecord):
        line = durable.lines.get(record.line)
        if line is None or (line.over and not isinstance(record, DeviceReported)):
            return f"its rollout of {record.line!r} is not here"
        return None
    state = durable.jobs.get(record.job)
    if state is None:
        return f"its job {record.job!r} is not here: submit that again"
    return None if _follows(state, record) else f"an earlier record of the job {record.job!r} is missing"


def _follows(state: JobState, record: JobRecord) -> bool:  # noqa: C901, PLR0912  # one short case for each record
    """Whether a record is of the step that the job is at, or says what a later round came to.

    That is worth more than to begin where the record is missing: models of earlier rounds are no longer kept.
    """
    numbers = {tour.number for tour in state.tours}
    if isinstance(record, JobContinued | RoundsKept | JobMandated):
        return True
    if isinstance(record, RoundMeasured):
        return bool(state.unmeasured) and record.round == len(state.history)
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
            return record.status != "done" or state.why_complete() is not None
        case _:
            return True


def do_without(durable: CoordinatorState, missing: AbstractSet[bytes]) -> list[str]:
    """Go on without blobs that are gone: ask for results again, or end the jobs that cannot go on."""
    lost: list[str] = []
    for state in durable.jobs.values():
        lost += _job_without(state, missing)
    for line in durable.lines.values():
        if line.live() & missing:
            lost.append(f"the release {line.line!r} is gone, so no further device gets it: roll it out again")
    return lost


def _job_without(state: JobState, missing: AbstractSet[bytes]) -> list[str]:
    lost = []
    again = [
        at for at, toured in state.arrived.items() if missing & _digests([*toured.vectors.values(), toured.reports])
    ]
    for number in again:
        del state.arrived[number]
        lost.append(f"what tour {ordinal(number)} of job {state.name!r} brought home is gone; it is asked for again")
    if again:  # its site has seen this attempt accepted, and would not lead it again
        state.renumber(0)
    unknown = [device for device, ref in state.weights.items() if ref.digest in missing]
    for device in unknown:
        del state.weights[device]
        state.signatures.pop(device, None)
        lost.append(f"what was known of {device} for job {state.name!r} is gone; it is estimated again")
    lost += _rounds_without(state, missing)
    if not state.live() & missing:
        return lost
    return [*lost, _compiled_again(state) if _may_begin_again(state) else _ended(state)]


def _rounds_without(state: JobState, missing: AbstractSet[bytes]) -> list[str]:
    """Models of earlier rounds that are gone are kept no more; the job goes on without them."""
    gone = [number for number, ref in (state.kept or {}).items() if ref.digest in missing]
    if gone:
        state.kept = {number: ref for number, ref in (state.kept or {}).items() if number not in gone}
    if (it := state.unmerged) and _digests([*it.vectors.values(), *it.handout.values()]) & missing:
        state.unmerged = UNSET
    return [f"the model of round {number} of job {state.name!r} is gone" for number in gone]


def _may_begin_again(state: JobState) -> bool:
    """Whether no round was closed: then compiling again brings back all that is missing."""
    return state.status not in ENDED and not state.history and not state.tours


def _compiled_again(state: JobState) -> str:
    state.kit, state.status, state.detail = None, "queued", ""
    return f"the compiled model of job {state.name!r} is gone; it is compiled again"


def _ended(state: JobState) -> str:
    """A job without its model ends with a reason; of one that has ended only exports are lost."""
    gone = f"its model, or what it was compiled to, is gone from the disk: {RESTORE}, or submit it again"
    if state.status in ENDED:
        return f"job {state.name!r}: {gone}"
    state.apply(JobEnded(state.name, "refused", gone))
    return f"job {state.name!r} is refused: {gone}"


def _digests(refs: list[Ref]) -> set[bytes]:
    return {ref.digest for ref in refs}
