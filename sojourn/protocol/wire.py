"""What messages are made of: names, references, identities, and views for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sojourn.about import About, ordinal
from sojourn.parts import Encoding, Estimator, Objective, Training
from sojourn.protocol.data_summary import DataSummary
from sojourn.protocol.limits import (
    Accuracy,
    Bytes,
    Digest,
    Duration,
    Hop,
    Identity,
    Inline,
    Label,
    LongText,
    Measure,
    MetricName,
    Metrics,
    Moment,
    Name,
    Norm,
    Number,
    Samples,
    Signature,
    Size,
    Steps,
    Text,
    check_figures,
)
from sojourn.protocol.signed_hop import SignedHop
from sojourn.protocol.task import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

VectorName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
VisitReason = Literal[
    "busy", "hot", "metered", "power", "hours", "memory", "disk", "data", "runtime", "unsupported", "stale", "gone",
    "failed", "mandate",
]  # fmt: skip
METRICS = 32
"""At most this many figures come with a visit."""
MEASURED = ("steps", "rise")
"""Figures of a visit that an edge server works out itself, whatever the device says."""
DATA_NOTE = "data: "
"""What a device says of its own data in its report begins with this."""
VisitStatus = Literal["done", "declined", "lost", "refused"]
"""How a visit ended: kept, declined by the device, silent past its lease, or stopped by the gate."""
JobStatus = Literal["queued", "compiling", "waiting", "running", "done", "stopped", "refused", "failed"]
WORKER = 64 << 20
"""Bytes of a training process before it has a model: Python, numpy, onnxruntime (54 to 58 MB were measured)."""
VECTORS = 4
"""Vectors of the model's length that a visit holds besides those of a step: where it began, where it is, the gradient
outside of the graph, the result as it is written."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """Which boot of a node speaks: a stored counter and eight random bytes."""

    count: Identity
    nonce: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class Ref(msgspec.Struct, frozen=True, omit_defaults=True):
    """A blob by its digest, how it is encoded, and the blob itself when it is small enough to ride along."""

    digest: Digest
    size: Size
    encoding: Encoding | Literal["raw"] = "raw"
    delta: bool = False
    inline: Inline | None = None


Vectors = Annotated[dict[VectorName, Ref], msgspec.Meta(max_length=16)]


class TourId(msgspec.Struct, frozen=True, array_like=True):
    """One tour of one round; `attempt` is its fencing number."""

    job: Name
    round: Number
    number: Number
    attempt: Number

    def __str__(self) -> str:
        return f"{self.job} round {self.round} tour {ordinal(self.number)}"

    def about(self, *, site: str = "", hop: int | None = None, device: str = "") -> About:
        """For the log: the tour, or the visit of one of its hops, before that has a number of its own."""
        return About(self.job, self.round, self.number, hop, device=device, site=site)


class VisitId(msgspec.Struct, frozen=True, array_like=True):
    """One visit of one tour; `attempt` fences first by the tour's attempt, then by the visit's own."""

    job: Name
    round: Number
    tour: Number
    hop: Hop
    attempt: tuple[Number, Number]

    def __str__(self) -> str:
        return f"{self.job} round {self.round} tour {ordinal(self.tour)} hop {ordinal(self.hop)}"

    def about(self, *, device: str = "", site: str = "") -> About:
        """For the log."""
        return About(self.job, self.round, self.tour, self.hop, self.attempt, device, site)


class Task(msgspec.Struct, frozen=True):
    """What a device is asked to do with the model it is handed."""

    kind: Literal["train", "estimate"]
    training: Training
    objective: Objective
    encoding: Encoding
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None
    estimator: Estimator | None = None
    """What an `estimate` is to find out."""


class TrainingSize(msgspec.Struct, frozen=True, array_like=True):
    """What training a job's model takes of a device's memory.

    parameters: the length of the model's vector. fixed: bytes of a training step, whatever its batch. sample: further
    bytes for each sample of the batch.
    """

    parameters: Size
    fixed: Bytes
    sample: Bytes

    def memory(self, batch: int, kit: int) -> int:
        """An estimate of the bytes that a training process takes, besides the device's own data.

        kit: the bytes of the job's kit, which is held as it came and as the session that was made of it.
        """
        return WORKER + 2 * kit + 4 * VECTORS * self.parameters + self.fixed + self.sample * batch


class Offer(msgspec.Struct, frozen=True):
    """What a device can do. Nothing else is asked of it."""

    version: Label
    machine: Label
    runtime: Label
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    memory: Bytes
    objectives: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)]
    data: Text
    shares: Annotated[tuple[Label, ...], msgspec.Meta(max_length=16)] = ()
    """What its owner lets it tell about its data: `range`, `classes`, `class-counts`."""
    abilities: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)] | msgspec.UnsetType = msgspec.UNSET
    """The encodings, optimisers and estimators that it knows; agents that were made before there was a list do not say,
    and know all that there was then (`sojourn.protocol.abilities`)."""
    summary: DataSummary | msgspec.UnsetType = msgspec.UNSET
    """What it understood of its data, as far as its owner shares it; older agents, and those that have not looked yet,
    do not say."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One device of a roster."""

    device: Name
    epoch: Epoch
    offer: Offer | None
    clash: bool = False
    """Whether two running agents use this name."""


class VisitReport(msgspec.Struct, frozen=True):
    """How one attempt of a visit ended; travels inside `Toured.reports`."""

    device: Name
    hop: Hop
    status: VisitStatus
    reason: Text
    samples: Samples
    norm: Norm
    metrics: Metrics
    signature: Signature | None
    seconds: Duration
    signed: SignedHop | msgspec.UnsetType = msgspec.UNSET
    """What the device signed, where it has a key of its own and the visit was kept; unset before 0.8.0."""

    @property
    def stride(self) -> float:
        """How far the model went, by the steps that the edge server has noted."""
        return stride(self.norm, self.metrics.get("steps", 1.0))


def with_figures(metrics: Mapping[str, float], figures: Mapping[str, float]) -> dict[str, float]:
    """A device's metrics with figures that are not left to it; not more than a report holds."""
    others = [(name, value) for name, value in metrics.items() if name not in MEASURED][: METRICS - len(MEASURED)]
    return {**dict(others), **figures}


def stride(norm: float, steps: float) -> float:
    """The update's L2 norm divided by sqrt(steps).

    Steps in random directions add up to about sqrt(steps) of one step, so devices with few and with many steps can be
    compared.
    """
    return norm / math.sqrt(steps) if 1.0 < steps < math.inf else norm


def visit_steps(task: Task, samples: int, earlier: int) -> int:
    """The steps that a visit makes on so many samples, as its task says; at least 1.

    What the device itself says of its steps is not asked. earlier: how many visits the model had on this tour before.
    """
    passes = task.training.epochs
    if task.kind == "train":
        passes = task.objective.passes(passes, earlier)
        samples = task.objective.learns_from(samples)
    return max(1, passes * -(-samples // task.training.batch))


class HopEnd(msgspec.Struct, frozen=True, array_like=True):
    """How one try of a hop ended; the reason is cut where it is long: `VisitReport` has the whole of it."""

    hop: Hop
    device: Name
    status: VisitStatus
    reason: Label = ""


class TourTold(msgspec.Struct, frozen=True, array_like=True):
    """What became of a tour's hops so far, beyond what its plan and their number tell.

    ended: the tries that came to nothing, and the hops that a spare did; of tours with merges, those that were done
    too. The newest, where there are many. merges: how often the devices' models are merged; 0: one hop after another.
    """

    ended: Annotated[tuple[HopEnd, ...], msgspec.Meta(max_length=64)] = ()
    merges: Number = 0


class TourView(msgspec.Struct, frozen=True):
    """A tour as a person sees it."""

    number: Number = msgspec.field(name="tour")
    site: Label
    hops: Annotated[tuple[Label, ...], msgspec.Meta(max_length=2500)]
    hop: Hop
    device: Label | None
    step: Steps
    steps: Steps
    lost: Number
    done: bool
    told: TourTold | msgspec.UnsetType = msgspec.UNSET
    """What became of its hops; unset where one after another went as planned, and before 0.9.0."""


Figures = Annotated[dict[MetricName, Measure], msgspec.Meta(max_length=64)]
"""How good a model is, by name; NaN where that is not known."""


class RoundReport(msgspec.Struct, frozen=True):
    """What a round did."""

    round: Number
    accuracy: Accuracy
    loss: Measure
    tours: Number
    visits: Number
    lost: Number
    traffic: Bytes
    seconds: Duration
    quality: Annotated[dict[MetricName, Measure], msgspec.Meta(max_length=64)]
    failures: tuple[LongText, ...] = ()
    ended: Moment | msgspec.UnsetType = msgspec.UNSET
    """When; unset before 0.4.0, and where nobody knows the date."""
    figures: Figures | msgspec.UnsetType = msgspec.UNSET
    """How good the model is besides accuracy and loss, by name (`sojourn.model.metrics`); unset where that was not
    measured, and before 0.7.0. What a task has no accuracy of is NaN there."""
    flagged: Number | msgspec.UnsetType = msgspec.UNSET
    """How many of its visits were kept only because the job's gate reports and refuses nothing."""

    def __post_init__(self) -> None:
        check_figures(self)


class JobModels(msgspec.Struct, frozen=True):
    """The rounds whose models can be exported, and the one whose model was the most accurate, if that was measured."""

    rounds: Annotated[tuple[Number, ...], msgspec.Meta(max_length=1000)]
    best: Number | None = None


class JobNews(msgspec.Struct, frozen=True):
    """What people should know since the newest round, and whom the rounds so far took.

    notes: who declined to be estimated, who takes no part and why. always: the devices that every round took, where it
    does not take all. never: those that were here and that no round took.
    """

    notes: Annotated[tuple[LongText, ...], msgspec.Meta(max_length=1000)] = ()
    always: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1000)] = ()
    never: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1000)] = ()


class JobTimes(msgspec.Struct, frozen=True):
    """When a job was submitted and when it ended, and the seconds from its turn to its end, or so far.

    Here stands, too, what a list of jobs tells of one since 0.7.0: a view with a field more would have other bytes for
    all jobs. task: what it learns, unset for a classification. figures: those of its newest round besides accuracy and
    loss.
    """

    submitted: Moment | None = None
    ended: Moment | None = None
    took: Duration | None = None
    task: Kind | msgspec.UnsetType = msgspec.UNSET
    figures: Figures | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_figures(self)


class JobView(msgspec.Struct, frozen=True):
    """A job as a person sees it."""

    job: Label
    strategy: Label
    model: Label
    status: JobStatus
    detail: LongText
    round: Number
    rounds: Number
    phase: Label
    accuracy: Accuracy
    devices: Number
    tours: Annotated[tuple[TourView, ...], msgspec.Meta(max_length=1000)] = ()
    history: Annotated[tuple[RoundReport, ...], msgspec.Meta(max_length=1000)] = ()
    models: JobModels | msgspec.UnsetType = msgspec.UNSET
    """Unset in lists, and before 0.4.0."""
    times: JobTimes | msgspec.UnsetType = msgspec.UNSET
    """Unset before 0.4.0."""
    news: JobNews | msgspec.UnsetType = msgspec.UNSET
    """Unset in lists, and before 0.4.0."""

    @property
    def task(self) -> Kind:
        """What the job learns."""
        return (self.times and self.times.task) or "classification"

    @property
    def figures(self) -> dict[str, float]:
        """How good the newest model is, besides its accuracy and loss."""
        return (self.times and self.times.figures) or {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know since the newest round."""
        return self.news.notes if self.news else ()

    @property
    def always(self) -> tuple[str, ...]:
        """The devices that every round took, where it does not take all."""
        return self.news.always if self.news else ()

    @property
    def never(self) -> tuple[str, ...]:
        """The devices that were here and that no round took."""
        return self.news.never if self.news else ()

    def __post_init__(self) -> None:
        check_figures(self)
