"""The parts of messages: names, references, identities, and views for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from sojourn.logs import About, ordinal
from sojourn.parts import Encoding, Estimator, Objective, Training
from sojourn.protocol.data_summary import DataSummary
from sojourn.protocol.limits import (
    Accuracy,
    Bytes,
    Digest,
    Duration,
    Ed25519Signature,
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
    check_metrics,
)
from sojourn.protocol.task import Kind

VectorName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
VisitReason = Literal[
    "busy", "hot", "metered", "power", "hours", "memory", "disk", "data", "runtime", "unsupported", "stale", "gone",
    "failed", "mandate",
]  # fmt: skip
METRICS = 32
"""Maximum number of metrics of a visit."""
MEASURED = ("steps", "rise")
"""Metrics of a visit that the edge server computes itself, overriding the device's."""
DATA_NOTE = "data: "
"""Prefix of a device's note on its own data in its report."""
VisitStatus = Literal["done", "declined", "lost", "refused"]
"""How a visit ended: successful, declined by the device, silent past its lease, or refused by the gate."""
JobStatus = Literal["queued", "compiling", "waiting", "running", "done", "stopped", "refused", "failed"]
WORKER = 64 << 20
"""Bytes of a training process without a model: Python, numpy, onnxruntime (54 to 58 MB were measured)."""
VECTORS = 4
"""Vectors of the model's length that a visit holds in addition to those of a step: the start, the current model, the
gradient outside of the graph, and the result as it is written."""


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a boot of a node: a stored counter and eight random bytes."""

    count: Identity
    nonce: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class Ref(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reference to a blob: its digest and encoding, and its content if it is small enough to be inlined."""

    digest: Digest
    size: Size
    encoding: Encoding | Literal["raw"] = "raw"
    delta: bool = False
    inline: Inline | None = None


Vectors = Annotated[dict[VectorName, Ref], msgspec.Meta(max_length=16)]
Digests = Annotated[dict[VectorName, Digest], msgspec.Meta(max_length=16)]


class TourId(msgspec.Struct, frozen=True, array_like=True):
    """One tour of one round; `attempt` is its fencing number."""

    job: Name
    round: Number
    number: Number
    attempt: Number

    def __str__(self) -> str:
        return f"{self.job} round {self.round} tour {ordinal(self.number)}"

    def about(self, *, site: str = "", hop: int | None = None, device: str = "") -> About:
        """Return the log context: the tour, or the visit of one of its hops before it has its own id."""
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
        """Return the log context."""
        return About(self.job, self.round, self.tour, self.hop, self.attempt, device, site)


class Task(msgspec.Struct, frozen=True):
    """What a device does with the model that it receives."""

    kind: Literal["train", "estimate"]
    training: Training
    objective: Objective
    encoding: Encoding
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None
    estimator: Estimator | None = None
    """What an `estimate` determines."""


class TrainingSize(msgspec.Struct, frozen=True, array_like=True):
    """The memory that training a job's model needs on a device.

    parameters: the length of the model's vector. fixed: bytes of a training step, whatever its batch. sample: further
    bytes for each sample of the batch.
    """

    parameters: Size
    fixed: Bytes
    sample: Bytes

    def memory(self, batch: int, kit: int) -> int:
        """Return an estimate of the bytes that a training process needs, in addition to the device's own data.

        kit: the bytes of the job's kit, which is held both as received and as the session created from it.
        """
        return WORKER + 2 * kit + 4 * VECTORS * self.parameters + self.fixed + self.sample * batch


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The abilities of a device, which gets only tasks within them."""

    version: Label
    machine: Label
    runtime: Label
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    memory: Bytes
    objectives: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)]
    data: Text
    shares: Annotated[tuple[Label, ...], msgspec.Meta(max_length=16)] = ()
    """What its owner shares about its data: `range`, `classes`, `class-counts`."""
    abilities: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)] = ()
    """The encodings, optimisers and estimators that it supports, and the models (`sojourn.protocol.task`)."""
    summary: DataSummary | None = None
    """A summary of its data, as far as its owner shares it; None before it has read the data."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One device of a roster."""

    device: Name
    epoch: Epoch
    offer: Offer | None
    clash: bool = False
    """Whether two running agents use this name."""


# A device's signature of a visit: to the edge server, and from there to the coordinator. Forwarding it needs no
# cryptography (`sojourn.protocol.signing`).


class HopSignature(msgspec.Struct, frozen=True, array_like=True):
    """A device's signature of its statement about a visit, and the steps that it reports."""

    steps: Steps
    signature: Ed25519Signature


class SignedHop(msgspec.Struct, frozen=True, array_like=True):
    """A device's signed statement about a counted visit, without what the coordinator knows, and the following model.

    kept, handed: the digests of the edge server's exact checkpoint of the returned model, and of what it sends to the
    next device. They equal the returned digest, unless the job compresses, the gate shortened the update, or the models
    of a wave are merged.
    """

    attempt: tuple[Number, Number]
    given: Digests
    returned: Digests
    samples: Samples
    steps: Steps
    signature: Ed25519Signature
    kept: Annotated[bytes, msgspec.Meta(max_length=32)]
    handed: Annotated[bytes, msgspec.Meta(max_length=32)]


class VisitReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one attempt of a visit ended; sent inside `Toured.reports`."""

    device: Name
    hop: Hop
    status: VisitStatus
    reason: Text
    samples: Samples
    norm: Norm
    metrics: Metrics
    signature: Signature | None
    seconds: Duration
    signed: SignedHop | None = None
    """The device's signed statement, if it has its own key and the visit was successful."""

    @property
    def stride(self) -> float:
        """The distance that the model moved, normalised by the steps that the edge server counted."""
        return stride(self.norm, self.metrics.get("steps", 1.0))


def with_metrics(reported: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Return a device's metrics with those that the edge server measured, up to the maximum of a report."""
    others = [(name, value) for name, value in reported.items() if name not in MEASURED][: METRICS - len(MEASURED)]
    return {**dict(others), **measured}


def stride(norm: float, steps: float) -> float:
    """Return the update's L2 norm divided by sqrt(steps).

    Steps in random directions add up to about sqrt(steps) of one step, so devices with few and with many steps can be
    compared.
    """
    return norm / math.sqrt(steps) if 1.0 < steps < math.inf else norm


def visit_steps(task: Task, samples: int, earlier: int) -> int:
    """Return the number of steps of a visit with this many samples according to its task; at least 1.

    The device's own report of its steps is not used. earlier: the number of earlier visits of the model on this tour.
    """
    passes = task.training.epochs
    if task.kind == "train":
        passes = task.objective.passes(passes, earlier)
        samples = task.objective.learns_from(samples)
    return max(1, passes * -(-samples // task.training.batch))


class HopEnd(msgspec.Struct, frozen=True, array_like=True):
    """How one attempt of a hop ended; a long reason is cut: `VisitReport` contains it whole."""

    hop: Hop
    device: Name
    status: VisitStatus
    reason: Label = ""


class HopEnds(msgspec.Struct, frozen=True, array_like=True):
    """The outcomes of a tour's hops so far, as far as they differ from its plan.

    ended: the failed attempts, and the hops that a spare did; for tours with merges, successful ones as well. Only the
    newest if there are many. merges: how often the devices' models are merged; 0: one hop after another.
    """

    ended: Annotated[tuple[HopEnd, ...], msgspec.Meta(max_length=64)] = ()
    merges: Number = 0


class TourView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tour as shown to operators."""

    number: Number = msgspec.field(name="tour")
    site: Label
    hops: Annotated[tuple[Label, ...], msgspec.Meta(max_length=2500)]
    hop: Hop
    device: Label | None
    step: Steps
    steps: Steps
    lost: Number
    done: bool
    ends: HopEnds | None = None
    """The outcomes of its hops; None if one after another went as planned."""


ModelMetrics = Annotated[dict[MetricName, Measure], msgspec.Meta(max_length=64)]
"""The quality of a model, by metric name; NaN for unknown values."""


class RoundReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a round."""

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
    ended: Moment | None = None
    """When it ended; None if the date is unknown."""
    metrics: ModelMetrics = {}
    """Metrics other than accuracy and loss, by name (`sojourn.model.metrics`); empty if they were not measured. The
    accuracy is NaN for a task without one."""
    flagged: Number = 0
    """The number of visits that count only because the job's gate reports and refuses nothing."""

    def __post_init__(self) -> None:
        check_metrics(self)


class JobModels(msgspec.Struct, frozen=True):
    """The rounds whose models can be exported, and the one with the best model, if that was measured."""

    rounds: Annotated[tuple[Number, ...], msgspec.Meta(max_length=1000)]
    best: Number | None = None


class JobNews(msgspec.Struct, frozen=True):
    """News since the newest round, and the devices selected so far.

    notes: devices that declined an estimation, and devices that do not take part, with the reasons. always: devices
    selected in every round, unless all are. never: available devices that no round selected.
    """

    notes: Annotated[tuple[LongText, ...], msgspec.Meta(max_length=1000)] = ()
    always: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1000)] = ()
    never: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1000)] = ()


class JobTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a job was submitted and when it ended, and the seconds from its first turn to its end, or until now.

    task: its kind, None for a classification. metrics: those of its newest round other than accuracy and loss.
    """

    submitted: Moment | None = None
    ended: Moment | None = None
    took: Duration | None = None
    task: Kind | None = None
    metrics: ModelMetrics = {}

    def __post_init__(self) -> None:
        check_metrics(self)


class JobView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as shown to operators."""

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
    models: JobModels | None = None
    """None in lists."""
    times: JobTimes = JobTimes()
    news: JobNews | None = None
    """None in lists."""

    @property
    def task(self) -> Kind:
        """The kind of the job's task."""
        return self.times.task or "classification"

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the newest model other than its accuracy and loss."""
        return self.times.metrics

    @property
    def notes(self) -> tuple[str, ...]:
        """What operators should know since the newest round."""
        return self.news.notes if self.news else ()

    @property
    def always(self) -> tuple[str, ...]:
        """Devices selected in every round, unless all are."""
        return self.news.always if self.news else ()

    @property
    def never(self) -> tuple[str, ...]:
        """Available devices that no round selected."""
        return self.news.never if self.news else ()

    def __post_init__(self) -> None:
        check_metrics(self)
