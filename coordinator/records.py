"""The journal records of jobs and their mandates, which change a coordinator's durable state."""

from __future__ import annotations

from typing import Literal

import msgspec

from coordinator.audit_records import AuditRecorded
from coordinator.fleet_records import DeviceForgotten, FleetChanged, VisitOutcome
from coordinator.rollout_records import RolloutRecord
from hierarchy.arranging.arrangement import ClientSet, Memo
from sojourn.protocol.limits import Moment
from sojourn.protocol.mandates import Normalisation, SignedMandate, SignedWithdrawal
from sojourn.protocol.messages import Toured
from sojourn.protocol.visit_outcomes import PASSING, reason_word
from sojourn.protocol.wire import JobStatus, Ref, RoundReport, TrainingSize


class JobMandated(msgspec.Struct, frozen=True, tag="job-mandated/1"):
    """An operator signed the tasks of a job; `ticket` is the ticket of the request."""

    job: str
    mandate: SignedMandate
    ticket: str


class MandateWithdrawn(msgspec.Struct, frozen=True, tag="mandate-withdrawn/1"):
    """An operator withdrew a job's mandates: sites are notified until the last of them would have ended."""

    job: str
    withdrawal: SignedWithdrawal
    at: float


Withdrawals = dict[str, SignedWithdrawal]
"""By job, the withdrawals of mandates that might still be valid."""
KEPT = 256
"""Maximum number of stored withdrawals: the newest."""


def withdrawn(known: Withdrawals, record: MandateWithdrawn) -> Withdrawals:
    """Return the withdrawals with one more, without those that no longer matter."""
    all_of_them = {**known, record.job: record.withdrawal}
    read = {job: it for job, signed in all_of_them.items() if (it := signed.read()) and it.ends > record.at}
    return {job: all_of_them[job] for job in list(read)[-KEPT:]}


Phase = Literal["estimate", "train"]
INITIAL = "initial"
"""The name of the first model, from which estimations start."""
ENDED: tuple[JobStatus, ...] = ("done", "stopped", "refused", "failed")


class TourPlan(msgspec.Struct, frozen=True):
    """A tour of the current round: its site, its devices, and the job's vectors from which it starts."""

    number: int
    site: str
    hops: tuple[str, ...]
    spares: tuple[str, ...] = ()
    attempt: int = 1
    start: dict[str, str] = msgspec.field(default_factory=lambda: {"model": "model"})
    slot: str | None = None
    """The slot that its model returns to, if models travel for several rounds."""
    leg: int = 0
    """Tours of a later leg depart from the model that the earlier one brought back."""


class JobSubmitted(msgspec.Struct, frozen=True, tag="job-submitted/1"):
    """A job was queued; `text` is its job file, `ticket` is the ticket of the request."""

    job: str
    text: str
    ticket: str
    at: Moment | None = None
    """When, if the date is known."""


class JobStarted(msgspec.Struct, frozen=True, tag="job-started/1"):
    """The job is next in the queue: it is being compiled, or continues with its compiled kit."""

    job: str
    at: Moment | None = None


class JobContinued(msgspec.Struct, frozen=True, tag="job-continued/1"):
    """The job has other rounds or another target, as in `text`; one that had ended is queued again."""

    job: str
    text: str
    ticket: str


class JobRemoved(msgspec.Struct, frozen=True, tag="job-removed/1"):
    """A job that was over was removed with its models; `remembered`: devices may still have state for it."""

    job: str
    remembered: bool = False


class JobCompiled(msgspec.Struct, frozen=True, tag="job-compiled/1"):
    """The job's graphs agree with torch and its data was found: it may begin."""

    job: str
    kit: Ref
    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]
    exemplars: Ref | None
    test: Ref | None
    recipe: str = ""
    """Identifies how the kit was made; empty if that cannot be determined."""
    initial: Ref | None = None
    classes: int = 0
    notices: tuple[str, ...] = ()
    """Warnings about the job's own data."""
    asks: tuple[str, ...] = ()
    """The abilities that the kit requires of devices and sites (`sojourn.protocol.task`)."""
    normalisation: Normalisation | None = None
    """The kit's constants that do not come from the job's file, which a signer needs to compile it again."""
    size: TrainingSize | None = None
    """The memory that training needs on a device."""


class JobWaits(msgspec.Struct, frozen=True, tag="job-waits/1"):
    """The next round cannot be planned with the online devices, or the job has no signature."""

    job: str
    reason: str
    unsigned: bool = False


class RoundPlanned(msgspec.Struct, frozen=True, tag="round-planned/1"):
    """The tours of a round, or of an estimation before it, and the quality of their arrangement."""

    job: str
    phase: Phase
    tours: tuple[TourPlan, ...]
    quality: dict[str, float]
    newcomers: tuple[str, ...] = ()
    """Devices that are new to the job."""
    notices: tuple[str, ...] = ()
    """Notices about the plan for operators."""
    arranged: tuple[ClientSet, ...] | None = None
    """None if the arrangement and the arranger's memory have not changed."""
    memo: Memo = {}


class LegPassed(msgspec.Struct, frozen=True, tag="leg-passed/1"):
    """The tours of a leg are complete: the next leg departs from their results."""

    job: str
    leg: int
    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]


class TourArrived(msgspec.Struct, frozen=True, tag="tour-arrived/1"):
    """A tour's result has arrived."""

    job: str
    toured: Toured


class TourMoved(msgspec.Struct, frozen=True, tag="tour-moved/1"):
    """A site was lost: another one leads its tour, under a new fencing number."""

    job: str
    tour: TourPlan


class TourGivenUp(msgspec.Struct, frozen=True, tag="tour-given-up/1"):
    """A site was lost, and its tour with it."""

    job: str
    number: int
    reason: str


class DevicesEstimated(msgspec.Struct, frozen=True, tag="devices-estimated/1"):
    """The results of an estimation: signatures, and the devices that gave none this time."""

    job: str
    signatures: dict[str, tuple[float, ...]]
    silent: tuple[str, ...]
    failures: tuple[str, ...]
    traffic: int
    samples: dict[str, int] = {}
    weights: dict[str, Ref] = {}
    norms: tuple[float, ...] = ()
    """How far training moved the model, for the gate of the first round; empty if nothing was trained."""
    failed: int = 0
    """The number of failed visits."""
    visited: tuple[VisitOutcome, ...] = ()
    """The outcome of each visit."""
    at: Moment | None = None
    """When, in seconds since 1970, if the date is known."""


class Unmerged(msgspec.Struct, frozen=True):
    """A job's state after a round that merged only because it was the last: more rounds continue from here."""

    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]
    slots: dict[str, float]
    since_merge: int
    merged_fleet: int


class RoundKeeps(msgspec.Struct, frozen=True):
    """What is stored in addition to the job's new vectors when a round closes.

    rounds: the rounds whose models are stored from now on, including this one. evaluation_pending: whether this round's
    model has not been tested yet, so that another one may become the best.
    """

    rounds: tuple[int, ...] = ()
    unmerged: Unmerged | None = None
    evaluation_pending: bool = False


class RoundClosed(msgspec.Struct, frozen=True, tag="round-closed/1"):
    """The round's tours have become the job's next state."""

    job: str
    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]
    norms: tuple[float, ...]
    report: RoundReport
    merged: bool = True
    slots: dict[str, float] = {}
    """The samples that each slot has seen since the last merge; empty after a merge."""
    visits: dict[str, int] = {}
    """The successful visits of each device in this round."""
    samples: dict[str, int] = {}
    weights: dict[str, Ref] = {}
    rises: tuple[float, float] | None = None
    """The factor by which its visits increased the loss on the exemplars: the median, and the median deviation from it,
    infinite if there are too few; None if it was not measured."""
    keeps: RoundKeeps | None = None
    visited: tuple[VisitOutcome, ...] = ()
    """The outcome of each visit."""
    device_notes: dict[str, str] = {}
    """By device, its note on its own data, if it differs from the last one."""
    at: Moment | None = None
    """When, in seconds since 1970, if the date is known."""

    @property
    def evaluation_pending(self) -> bool:
        """Whether its report has no metrics yet: then a RoundMeasured follows."""
        return bool(self.keeps and self.keeps.evaluation_pending)


class RoundFailed(msgspec.Struct, frozen=True, tag="round-failed/1"):
    """A round, or an estimation before it, ended without a result: the job keeps its model and its round number.

    reason: why, in one sentence. failures: a line for each cause. failed: the number of failed visits. visits: the
    visits of each device, although none counted. silent: devices that did not answer an estimation. norms, rises: as in
    RoundClosed, including refused results, so that the next round corrects a gate that is wrong about all.
    """

    job: str
    reason: str
    failures: tuple[str, ...] = ()
    traffic: int = 0
    failed: int = 0
    visits: dict[str, int] = {}
    silent: tuple[str, ...] = ()
    norms: tuple[float, ...] = ()
    rises: tuple[float, float] | None = None
    visited: tuple[VisitOutcome, ...] = ()
    """The outcome of each visit."""
    at: Moment | None = None
    """When, in seconds since 1970."""

    @property
    def passing(self) -> bool:
        """Whether every device declined for a temporary reason: then this does not count as a failed attempt."""
        ended = [(it.status, reason_word(it.status, it.reason)) for it in self.visited]
        return bool(ended) and all(status == "declined" and word in PASSING for status, word in ended)


class RoundMeasured(msgspec.Struct, frozen=True, tag="round-measured/1"):
    """The model of the newest round was tested, or could not be: then `reason` has the cause, and its metrics are NaN.

    kept: the rounds whose models are stored from now on, since another one may be the best.
    """

    job: str
    round: int
    accuracy: float
    loss: float
    kept: tuple[int, ...] = ()
    reason: str = ""
    metrics: dict[str, float] = {}
    """Metrics other than accuracy and loss."""


class RoundsKept(msgspec.Struct, frozen=True, tag="rounds-kept/1"):
    """Only these models of a job's earlier rounds are still stored, since space was needed."""

    job: str
    rounds: tuple[int, ...]


class JobEnded(msgspec.Struct, frozen=True, tag="job-ended/1"):
    """The job is over."""

    job: str
    status: JobStatus
    detail: str
    at: Moment | None = None


JobRecord = (
    JobSubmitted | JobStarted | JobCompiled | JobWaits | RoundPlanned | LegPassed | TourArrived | TourMoved
    | TourGivenUp | DevicesEstimated | RoundClosed | RoundFailed | RoundMeasured | RoundsKept | JobEnded | JobContinued
    | JobRemoved | JobMandated
)  # fmt: skip
Record = JobRecord | RolloutRecord | FleetChanged | DeviceForgotten | MandateWithdrawn | AuditRecorded


def blobs_of(record: Record) -> tuple[bytes, ...]:
    """Return the digests of the blobs that must be on disk before this record."""
    match record:
        case JobCompiled():
            refs: list[Ref | None] = [
                record.kit,
                record.initial,
                record.exemplars,
                record.test,
                *record.vectors.values(),
                *record.wire_vectors.values(),
            ]
        case RoundClosed():
            refs = [*record.vectors.values(), *record.wire_vectors.values(), *record.weights.values()]
            other = record.keeps.unmerged if record.keeps else None
            refs += [*other.vectors.values(), *other.wire_vectors.values()] if other else []
        case LegPassed():
            refs = [*record.vectors.values(), *record.wire_vectors.values()]
        case DevicesEstimated():
            refs = [*record.weights.values()]
        case _:
            refs = []
    return tuple({ref.digest for ref in refs if ref})
