"""The records that change a coordinator's durable state (`coordinator.state`), as its journal holds them."""

from __future__ import annotations

from typing import Literal

import msgspec

from coordinator.audit_records import ActLogged
from coordinator.fleet_records import DeviceForgotten, FleetChanged, VisitOutcome
from coordinator.mandate_records import JobMandated, MandateWithdrawn
from coordinator.rollout_records import RolloutRecord
from hierarchy.arranging.arrangement import ClientSet, Memo
from sojourn.protocol.limits import Moment
from sojourn.protocol.mandate_messages import Normalisation
from sojourn.protocol.messages import Toured
from sojourn.protocol.visit_words import PASSING, reason_word
from sojourn.protocol.wire import JobStatus, Ref, RoundReport, TrainingSize

Phase = Literal["estimate", "train"]
INITIAL = "initial"
"""The name of the first model, from which estimations start."""
ENDED: tuple[JobStatus, ...] = ("done", "stopped", "refused", "failed")


class TourPlan(msgspec.Struct, frozen=True):
    """One tour of the present round: where it runs and which of the job's vectors it starts from."""

    number: int
    site: str
    hops: tuple[str, ...]
    spares: tuple[str, ...] = ()
    attempt: int = 1
    start: dict[str, str] = msgspec.field(default_factory=lambda: {"model": "model"})
    slot: str | None = None
    """The slot that its model returns to, where models travel for several rounds."""
    leg: int = 0
    """Tours of a later leg depart from the model that the earlier one brought home."""


class JobSubmitted(msgspec.Struct, frozen=True, tag="job-submitted/1"):
    """A job was queued; `text` is its job file, `ticket` is what the operator called the request."""

    job: str
    text: str
    ticket: str
    at: Moment | msgspec.UnsetType = msgspec.UNSET
    """When; unset before 0.4.0."""


class JobStarted(msgspec.Struct, frozen=True, tag="job-started/1"):
    """The job is next in the queue: it is being compiled, or goes on with what was compiled before."""

    job: str
    at: Moment | msgspec.UnsetType = msgspec.UNSET


class JobContinued(msgspec.Struct, frozen=True, tag="job-continued/1"):
    """The job has other rounds to do or another target, as `text` says; one that had ended is queued again."""

    job: str
    text: str
    ticket: str


class JobRemoved(msgspec.Struct, frozen=True, tag="job-removed/1"):
    """A job that had ended is forgotten, with its models; `remembered` says whether devices may remember it."""

    job: str
    remembered: bool = False


class JobCompiled(msgspec.Struct, frozen=True, tag="job-compiled/1"):
    """The job's graphs agree with torch and its data was found: it may begin."""

    job: str
    kit: Ref
    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    exemplars: Ref | None
    test: Ref | None
    recipe: str = ""
    """What the kit was made of; empty where nobody can tell."""
    initial: Ref | None = None
    classes: int = 0
    notices: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What is odd about the job's own data, if something is."""
    asks: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """What the kit asks of devices and sites, if something (`sojourn.protocol.abilities`)."""
    normalisation: Normalisation | msgspec.UnsetType = msgspec.UNSET
    """What went into the kit besides the job's file: whoever signs it compiles it again."""
    size: TrainingSize | msgspec.UnsetType = msgspec.UNSET
    """What training takes of a device's memory."""


class JobWaits(msgspec.Struct, frozen=True, tag="job-waits/1"):
    """The next round cannot be planned with the devices that are here."""

    job: str
    reason: str


class RoundPlanned(msgspec.Struct, frozen=True, tag="round-planned/1"):
    """The tours of a round, or of an estimation before it, and the quality of their arrangement."""

    job: str
    phase: Phase
    tours: tuple[TourPlan, ...]
    quality: dict[str, float]
    newcomers: tuple[str, ...] = ()
    """The devices that the job has never had before."""
    notices: tuple[str, ...] = ()
    """What people should know of the plan."""
    arranged: tuple[ClientSet, ...] | None = None
    """None where the arrangement and the arranger's memory are those of before."""
    memo: Memo = {}


class LegPassed(msgspec.Struct, frozen=True, tag="leg-passed/1"):
    """The tours of a leg are home: what they brought is where the next leg departs."""

    job: str
    leg: int
    vectors: dict[str, Ref]
    handout: dict[str, Ref]


class TourArrived(msgspec.Struct, frozen=True, tag="tour-arrived/1"):
    """A tour's result is here."""

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
    """What an estimation found out: signatures, and the devices that gave none this time."""

    job: str
    signatures: dict[str, tuple[float, ...]]
    silent: tuple[str, ...]
    failures: tuple[str, ...]
    traffic: int
    samples: dict[str, int] = {}
    weights: dict[str, Ref] = {}
    norms: tuple[float, ...] | msgspec.UnsetType = msgspec.UNSET
    """How far training went, for the gate of the first round; unset where nothing was trained, and before 0.3.0."""
    failed: int | msgspec.UnsetType = msgspec.UNSET
    """How many visits came to nothing; unset before 0.4.0."""
    visited: tuple[VisitOutcome, ...] | msgspec.UnsetType = msgspec.UNSET
    """How each visit ended; unset before 0.4.0."""
    at: Moment | msgspec.UnsetType = msgspec.UNSET
    """When, in seconds since 1970; unset before 0.4.0."""


class Unmerged(msgspec.Struct, frozen=True):
    """What a job has after a round that merged only because it was the last: with more rounds it goes on from here."""

    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    slots: dict[str, float]
    since_merge: int
    merged_fleet: int


class RoundKeeps(msgspec.Struct, frozen=True):
    """What is kept besides the job's new vectors when a round closes.

    rounds: those whose models are kept from now on, this one's among them. unmeasured: whether this one's is still to
    be tested, so that another may be the best then.
    """

    rounds: tuple[int, ...] = ()
    unmerged: Unmerged | None = None
    unmeasured: bool | msgspec.UnsetType = msgspec.UNSET


class RoundClosed(msgspec.Struct, frozen=True, tag="round-closed/1"):
    """The round's tours have become the job's next state."""

    job: str
    vectors: dict[str, Ref]
    handout: dict[str, Ref]
    norms: tuple[float, ...]
    report: RoundReport
    merged: bool = True
    slots: dict[str, float] = {}
    """The samples that each slot has seen since the last merge; none are left after one."""
    visits: dict[str, int] = {}
    """The visits that each device has done in this round."""
    samples: dict[str, int] = {}
    weights: dict[str, Ref] = {}
    rises: tuple[float, float] | msgspec.UnsetType = msgspec.UNSET
    """By which factor its visits made the loss on the exemplars grow: the median, and the median deviation from it,
    infinite where there are too few to tell; unset where nobody looked."""
    keeps: RoundKeeps | msgspec.UnsetType = msgspec.UNSET
    """Unset before 0.4.0: then nothing was."""
    visited: tuple[VisitOutcome, ...] | msgspec.UnsetType = msgspec.UNSET
    """How each visit ended; unset before 0.4.0."""
    at: Moment | msgspec.UnsetType = msgspec.UNSET
    """When, in seconds since 1970; unset before 0.4.0."""

    @property
    def unmeasured(self) -> bool:
        """Whether its report does not say yet how good the model is: then a RoundMeasured follows."""
        return bool(self.keeps and self.keeps.unmeasured)


class RoundFailed(msgspec.Struct, frozen=True, tag="round-failed/1"):
    """A round, or an estimation before it, ended without a result: the job keeps its model and its round number.

    reason: why, in one sentence. failures: a line for each cause. failed: how many visits failed. visits: the visits
    that each device did although none counted. silent: the devices that an estimation asked in vain. norms, rises: as
    in a RoundClosed; refused results are among them, so that a gate that is wrong about all is right the next time.
    """

    job: str
    reason: str
    failures: tuple[str, ...] = ()
    traffic: int = 0
    failed: int = 0
    visits: dict[str, int] = {}
    silent: tuple[str, ...] = ()
    norms: tuple[float, ...] = ()
    rises: tuple[float, float] | msgspec.UnsetType = msgspec.UNSET
    visited: tuple[VisitOutcome, ...] | msgspec.UnsetType = msgspec.UNSET
    """How each visit ended."""
    at: Moment | msgspec.UnsetType = msgspec.UNSET
    """When, in seconds since 1970."""

    @property
    def passing(self) -> bool:
        """Whether every device declined for a reason that ends by itself: then this is no failed attempt."""
        ended = [(it.status, reason_word(it.status, it.reason)) for it in self.visited or ()]
        return bool(ended) and all(status == "declined" and word in PASSING for status, word in ended)


class RoundMeasured(msgspec.Struct, frozen=True, tag="round-measured/1"):
    """The model of the newest round was tested, or could not be: then `reason` says why, and its figures are NaN.

    kept: the rounds whose models are kept from now on, since another one may be the best.
    """

    job: str
    round: int
    accuracy: float
    loss: float
    kept: tuple[int, ...] = ()
    reason: str = ""
    figures: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """Others than accuracy and loss; unset before 0.7.0."""


class RoundsKept(msgspec.Struct, frozen=True, tag="rounds-kept/1"):
    """Of a job's models of earlier rounds only these are kept: room was needed."""

    job: str
    rounds: tuple[int, ...]


class JobEnded(msgspec.Struct, frozen=True, tag="job-ended/1"):
    """The job is over."""

    job: str
    status: JobStatus
    detail: str
    at: Moment | msgspec.UnsetType = msgspec.UNSET


JobRecord = (
    JobSubmitted | JobStarted | JobCompiled | JobWaits | RoundPlanned | LegPassed | TourArrived | TourMoved
    | TourGivenUp | DevicesEstimated | RoundClosed | RoundFailed | RoundMeasured | RoundsKept | JobEnded | JobContinued
    | JobRemoved | JobMandated
)  # fmt: skip
Record = JobRecord | RolloutRecord | FleetChanged | DeviceForgotten | MandateWithdrawn | ActLogged


def blobs_of(record: Record) -> tuple[bytes, ...]:
    """The digests of the blobs that must be on the disk before this record is."""
    match record:
        case JobCompiled():
            refs: list[Ref | None] = [
                record.kit,
                record.initial,
                record.exemplars,
                record.test,
                *record.vectors.values(),
                *record.handout.values(),
            ]
        case RoundClosed():
            refs = [*record.vectors.values(), *record.handout.values(), *record.weights.values()]
            other = record.keeps.unmerged if record.keeps else None
            refs += [*other.vectors.values(), *other.handout.values()] if other else []
        case LegPassed():
            refs = [*record.vectors.values(), *record.handout.values()]
        case DevicesEstimated():
            refs = [*record.weights.values()]
        case _:
            refs = []
    return tuple({ref.digest for ref in refs if ref})
