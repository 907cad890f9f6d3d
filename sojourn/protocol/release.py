"""A release: a prediction graph with its card, the signed order that devices follow, and the rules on its health."""

from __future__ import annotations

from collections import Counter
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sojourn.protocol.limits import (
    Accuracy,
    Change,
    Digest,
    Duration,
    Ed25519Signature,
    FiniteFloat,
    Identity,
    Label,
    LongText,
    Measure,
    MetricName,
    Microseconds,
    Moment,
    Name,
    Number,
    Portion,
    Size,
    Text,
    check_metrics,
    decoded_or_none,
)
from sojourn.protocol.metric_names import called, metric_text, worsening
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec, classes_as_strata
from sojourn.protocol.wire import ModelMetrics

if TYPE_CHECKING:
    from sojourn.protocol.signing import Signer


def total_variation(first: Counter[int], second: Counter[int]) -> float:
    """Return the total variation distance of two class distributions, 0 to 1; 0 if one of them is empty."""
    ours, theirs = first.total(), second.total()
    if not ours or not theirs:
        return 0.0
    apart = sum(abs(first[each] / ours - second[each] / theirs) for each in first.keys() | second.keys()) / 2
    return min(apart, 1.0)  # sums of shares may be slightly above it


# A release is a prediction graph with its card, and the signed order that makes devices serve it.
#
# Only the holder of the private key can sign orders. A device follows an order only if its serial is higher than any
# before, so an old one cannot be replayed; going back to an older version needs a new order.

CLASSES = 1000
"""Maximum number of predicted classes that are counted individually."""
ENOUGH = 50
"""Minimum number of predictions for a reliable class distribution."""
QUORUM = 2
"""Default number of devices that must complain before a fleet rolls back."""
WORSE = 0.1
"""Default maximum relative worsening of a task's main metric."""
NEGLIGIBLE_DELAY = 100.0
"""Microseconds that a release may take longer without counting as slower, whatever the factor: the scheduler affects
such short times more than the graph."""

Version = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Quantile = Annotated[float, msgspec.Meta(gt=0, lt=1)]
ReleaseState = Literal["fetching", "checking", "serving", "refused", "failed", "fell-back", "withdrawn"]
"""A device's state for an order: the last five are final, and only `serving` and `withdrawn` are good."""
ENDS: frozenset[ReleaseState] = frozenset({"serving", "refused", "failed", "fell-back", "withdrawn"})
BAD: frozenset[ReleaseState] = frozenset({"refused", "failed", "fell-back"})


class ProbeScores(msgspec.Struct, frozen=True):
    """The scores of a probe's rows, float32, little-endian, and the tolerance for devices."""

    values: bytes
    atol: Duration


class ProbeCheck(msgspec.Struct, frozen=True):
    """Inputs with the outputs that torch, or otherwise the machine that made the release, computed for them.

    x: rows of the card's input, in its dtype, little-endian; logits: float32, as many rows, for other tasks the model's
    outputs; `atol` is the tolerance for devices.
    """

    rows: Number
    x: bytes
    logits: bytes
    atol: Duration
    scores: ProbeScores | None = None
    """Only for a reconstruction."""


class AnomalyRule(msgspec.Struct, frozen=True):
    """The score from which a sample counts as an anomaly.

    A device uses the score that this share (`quantile`) of its samples does not exceed. Without samples, it uses
    `threshold`: the same for the `samples` with which the release was made.
    """

    quantile: Quantile
    threshold: FiniteFloat
    samples: Number


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The model card of a release, for people and devices."""

    line: Name
    version: Version
    created: Text
    classes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=100_000)]
    input: InputSpec
    probe: ProbeCheck
    encoding: Literal["float32", "int8"] = "float32"
    accuracy: Accuracy = nan
    """On the data that the release was tested with, in its shipped encoding."""
    accuracy_lost: Change = 0.0
    """The accuracy lost by the encoding, on the same data: 0.01 is one point."""
    tested: Number = 0
    """The number of samples of this test."""
    job: Text = ""
    strategy: Text = ""
    model: Text = ""
    rounds: Number = 0
    devices: Number = 0
    data: Text = ""
    source: Text = ""
    """The source of the weights from which training started, as stated by the job's submitter."""
    licence: Text = ""
    """The licence of these weights."""
    checked: Text = ""
    """What the graph was compared with, and the largest difference."""
    notes: Text = ""
    task: TaskSpec | None = None
    """The task, unless it is a plain classification."""
    metrics: ModelMetrics = {}
    """Metrics on the test data, by name."""
    worse: Measure = nan
    """The relative worsening of the main metric by the encoding, if that is not the accuracy: 0.01 is one percent."""
    anomaly: AnomalyRule | None = None
    """Only for a reconstruction."""
    table: TableSpec | None = None
    """The columns of a sample by name, if it is a row of a table."""

    def __post_init__(self) -> None:
        check_metrics(self)

    @property
    def learns(self) -> TaskSpec:
        """The task."""
        return self.task or classes_as_strata(len(self.classes))


class BlobRef(msgspec.Struct, frozen=True, array_like=True):
    """A blob of a release, by its digest and size."""

    digest: Digest
    size: Size


class Goods(msgspec.Struct, frozen=True, array_like=True):
    """The two blobs of a release that a device fetches: its graph and its card."""

    graph: BlobRef
    card: BlobRef


class Order(msgspec.Struct, frozen=True, array_like=True):
    """Serve this version of a model line from now on; without goods, serve none."""

    fleet: Name
    line: Name
    serial: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    version: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    """0 for none."""
    goods: Goods | None
    rollback: bool = False
    """Whether the version may be lower than the current one."""


class SignedOrder(msgspec.Struct, frozen=True, array_like=True):
    """An order on the wire: the bytes that were signed."""

    order: Annotated[bytes, msgspec.Meta(max_length=1000)]
    signature: Ed25519Signature

    def read(self) -> Order | None:
        """Return the order, without checking its signature; None if it cannot be read."""
        return decoded_or_none(self.order, Order)

    def signed_by(self, public: str) -> bool:
        """Return whether the holder of this key signed the order."""
        from sojourn.protocol.signing import verify  # noqa: PLC0415  # imports cryptography only for orders

        return verify(public, self.order, self.signature)


def sign(order: Order, signer: Signer) -> SignedOrder:
    """Sign an order."""
    data = msgspec.msgpack.encode(order)
    return SignedOrder(data, signer.sign(data))


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """The time of predictions, in microseconds."""

    median: Microseconds
    p95: Microseconds


class TaskHealth(msgspec.Struct, frozen=True, array_like=True):
    """A release's quality on the device's own data, for tasks other than classification."""

    measure: MetricName
    """The name of the task's main metric."""
    metric: Measure = nan
    before: Measure = nan
    """The main metric of the previous release."""
    threshold: Measure = nan
    """For a reconstruction: the score from which a sample counts as an anomaly on this device."""

    def __post_init__(self) -> None:
        check_metrics(self)


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The health of a release on a device, in less than a kilobyte.

    The trial after its arrival: `rows` inputs (the device's own labelled data, otherwise the card's), given to the
    release and to the previous one. Since then: predictions that programs requested.
    """

    rows: Number = 0
    pace: Pace | None = None
    pace_before: Pace | None = None
    accuracy: Accuracy = nan
    accuracy_before: Accuracy = nan
    drift: Portion = 0.0
    """How much the distribution of predicted classes changed for the same inputs: total variation, 0 to 1."""
    predictions: Number = 0
    live: Pace | None = None
    live_before: Pace | None = None
    live_drift: Portion = 0.0
    """The same for predictions since, compared with those of the previous release; 0 while either has too few."""
    errors: Number = 0
    """The number of errors that programs reported."""
    mix: Annotated[tuple[Portion, ...], msgspec.Meta(max_length=64)] = ()
    """The share of each class in all predictions since; only the first classes if there are many.
    `sojourn.model.predictions` defines the classes for other tasks."""
    task: TaskHealth | None = None
    """Set if the main metric is not the accuracy."""

    def __post_init__(self) -> None:
        check_metrics(self)


class HealthRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a stage of a rollout counts as unhealthy.

    failures: the maximum share of unhealthy devices in a stage. latency: the maximum ratio of the p95 latency to that
    of the previous release. accuracy: the maximum drop (0.02 is two points). worse: the maximum relative worsening of
    another main metric (0.1: an error may grow by a tenth). drift: the maximum change in the distribution of predicted
    classes, or of their substitutes. errors: the maximum number of errors that programs report on one device. soak: the
    seconds for which all devices of a stage must be healthy. timeout: the seconds to wait for devices that do not
    answer. quorum: the number of devices that must complain before the fleet rolls back, or all if it has fewer; with
    1, one device is enough.
    """

    failures: Share = 0.0
    latency: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 2.0
    accuracy: Share = 0.02
    drift: Share = 0.3
    errors: Number = 0
    soak: Annotated[float, msgspec.Meta(ge=0, le=1e7)] = 10.0
    timeout: Annotated[float, msgspec.Meta(ge=0, le=1e7)] = 600.0
    quorum: Annotated[int, msgspec.Meta(ge=1, le=1000)] = QUORUM
    worse: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = WORSE


RolloutStatus = Literal["running", "paused", "halted", "rolling-back", "rolled-back", "done"]


class DeviceView(msgspec.Struct, frozen=True):
    """A device of a model line as shown to operators."""

    device: Label
    stage: Number
    """The stage that brings the release to it; 0 for none so far."""
    serial: Identity
    version: Number
    state: Label
    detail: LongText = ""
    health: Health | None = None


class RolloutTurn(msgspec.Struct, frozen=True, array_like=True):
    """A status change of a rollout, and its reason."""

    at: Moment
    status: RolloutStatus
    version: Number
    """The version of the rollout."""
    detail: Text = ""


class RolloutPlan(msgspec.Struct, frozen=True):
    """The rules and status changes of a rollout."""

    rules: HealthRules
    undo: bool
    """Whether an unhealthy stage is rolled back at once; otherwise the rollout only halts."""
    turns: Annotated[tuple[RolloutTurn, ...], msgspec.Meta(max_length=100)] = ()
    """The status changes of the line's rollouts, the oldest first; in lists only the newest."""


class LineView(msgspec.Struct, frozen=True):
    """A model line as shown to operators: its newest rollout."""

    line: Label
    status: RolloutStatus
    detail: LongText
    serial: Identity
    """The highest serial of the line's orders."""
    version: Number
    before: Number
    """The version that a rollback returns to; 0 for none."""
    serves: Number
    """The version that the fleet should serve."""
    goods: Goods | None
    """Its blobs."""
    stages: Annotated[tuple[Share, ...], msgspec.Meta(max_length=20)]
    stage: Number
    counts: Annotated[dict[Label, Number], msgspec.Meta(max_length=64)]
    """The number of devices in each state."""
    plan: RolloutPlan
    devices: Annotated[tuple[DeviceView, ...], msgspec.Meta(max_length=10_000)] = ()


def complaint(health: Health, rules: HealthRules) -> str | None:
    """Return which rule a device's report breaks, or None."""
    for now, before, where in (
        (health.pace, health.pace_before, "on the same inputs"),
        (health.live, health.live_before, "in use"),
    ):
        if now and before and now.p95 > rules.latency * before.p95 and now.p95 - before.p95 > NEGLIGIBLE_DELAY:
            times = now.p95 / before.p95 if before.p95 else inf
            return f"{times:.1f} times as slow as before {where} ({_us(now.p95)}, before {_us(before.p95)})"
    fell = health.accuracy_before - health.accuracy
    if not isnan(fell) and fell > rules.accuracy:
        return (
            f"accuracy fell by {100 * fell:.1f} points on {health.rows} local samples "
            f"({100 * health.accuracy_before:.1f} % to {100 * health.accuracy:.1f} %)"
        )
    if health.task and (worse := _worse(health.task, health.rows, rules)):
        return worse
    what = "answers" if health.task else "classes"
    for drift, where in ((health.drift, "the same inputs"), (health.live_drift, "inputs in use")):
        if drift > rules.drift:
            return f"the mix of predicted {what} moved by {100 * drift:.0f} % on {where}"
    if health.errors > rules.errors:
        return f"programs reported {health.errors} errors"
    return None


def _worse(health: TaskHealth, rows: int, rules: HealthRules) -> str | None:
    name, lost = health.measure, worsening(health.measure, health.metric, health.before)
    if not lost > rules.worse:  # an unknown value (NaN) does not count as worse
        return None
    now, before = (metric_text(name, each) for each in (health.metric, health.before))
    return f"{called(name)} became worse by {100 * lost:.0f} % on {rows} local samples ({before} to {now})"


def _us(microseconds: float) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"
