"""A release: a prediction graph with its card, and the signed order that makes devices serve it.

Only the holder of the private key gives orders. A device obeys an order whose serial number is higher than any that
it obeyed before, so an old one cannot be played again; going back to an older version is an order of its own.
"""

from __future__ import annotations

from math import inf, isnan, nan
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sojourn.protocol.decoders import decoded
from sojourn.protocol.figure_names import called, figure_text, worsening
from sojourn.protocol.limits import (
    Accuracy,
    Change,
    Digest,
    Duration,
    Figure,
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
    check_figures,
)
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec, classes_as_strata
from sojourn.protocol.wire import Figures

if TYPE_CHECKING:
    from sojourn.protocol.signing import Signer

CLASSES = 1000
"""Predicted classes are counted one by one up to this many."""
SIGNATURE_BYTES = 64
ENOUGH = 50
"""At least this many predictions say something about how often each class comes."""
QUORUM = 2
"""How many devices must complain before a fleet turns back, unless the rules say otherwise."""
WORSE = 0.1
"""By which share of what it was the main figure of a task may become worse, unless the rules say otherwise."""
FELT = 100.0
"""Microseconds: a release that takes no longer than this more is not slower, whatever the factor. Of so short a time
the scheduler decides more than the graph, and nobody notices it."""

Version = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Quantile = Annotated[float, msgspec.Meta(gt=0, lt=1)]
ReleaseState = Literal["fetching", "checking", "serving", "refused", "failed", "fell-back", "withdrawn"]
"""Where a device is with an order: the last five are where it ends, and only `serving` and `withdrawn` are good."""
ENDS: frozenset[ReleaseState] = frozenset({"serving", "refused", "failed", "fell-back", "withdrawn"})
BAD: frozenset[ReleaseState] = frozenset({"refused", "failed", "fell-back"})


class ProbeScores(msgspec.Struct, frozen=True):
    """The scores of a probe's rows, float32, little-endian, and how far from them a device may be."""

    values: bytes
    atol: Duration


class ProbeCheck(msgspec.Struct, frozen=True):
    """Inputs with the answers that torch, or else the machine that made the release, gave for them.

    x: rows of the card's input, in its dtype, little-endian; logits: float32, as many rows, of a task of another kind
    what it answers; `atol` is how far from them a device may be.
    """

    rows: Number
    x: bytes
    logits: bytes
    atol: Duration
    scores: ProbeScores | msgspec.UnsetType = msgspec.UNSET
    """Of a reconstruction."""


class AnomalyRule(msgspec.Struct, frozen=True):
    """From which score on a sample counts as an anomaly.

    A device takes the score that this share (`quantile`) of its own samples does not exceed. Where it has none, it
    takes `threshold`: the same of the `samples` that the release was made with.
    """

    quantile: Quantile
    threshold: Figure
    samples: Number


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a person, and a device, should know of a release: its model card."""

    line: Name
    version: Version
    created: Text
    classes: Annotated[tuple[Text, ...], msgspec.Meta(max_length=100_000)]
    input: InputSpec
    probe: ProbeCheck
    encoding: Literal["float32", "int8"] = "float32"
    accuracy: Accuracy = nan
    """On the data that the release was tested with, as it is shipped."""
    accuracy_lost: Change = 0.0
    """What the encoding cost, on the same data: 0.01 is one point."""
    tested: Number = 0
    """The number of samples that say so."""
    job: Text = ""
    strategy: Text = ""
    model: Text = ""
    rounds: Number = 0
    devices: Number = 0
    data: Text = ""
    source: Text = ""
    """Where the weights come from that training started from, as whoever submitted the job said."""
    licence: Text = ""
    """The licence of these weights."""
    checked: Text = ""
    """What the graph was compared with, and how far it was from it."""
    notes: Text = ""
    task: TaskSpec | msgspec.UnsetType = msgspec.UNSET
    """What was learnt, where it is no plain classification."""
    figures: Figures | msgspec.UnsetType = msgspec.UNSET
    """How good it is on that data, by name; unset before 0.7.0."""
    worse: Measure | msgspec.UnsetType = msgspec.UNSET
    """Which share of its main figure the encoding cost, where that is not the accuracy: 0.01 is one percent."""
    anomaly: AnomalyRule | msgspec.UnsetType = msgspec.UNSET
    """Of a reconstruction."""
    table: TableSpec | msgspec.UnsetType = msgspec.UNSET
    """The columns that a sample consists of, by name, where it is a row of a table."""

    def __post_init__(self) -> None:
        check_figures(self)

    @property
    def learns(self) -> TaskSpec:
        """What was learnt."""
        return self.task or classes_as_strata(len(self.classes))


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """A blob of a release, by its digest and size."""

    digest: Digest
    size: Size


class Goods(msgspec.Struct, frozen=True, array_like=True):
    """The two blobs of a release that a device fetches: its graph and its card."""

    graph: Parcel
    card: Parcel


class Order(msgspec.Struct, frozen=True, array_like=True):
    """Serve this version of a model line from now on; without goods, serve none."""

    fleet: Name
    line: Name
    serial: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    version: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    """0 for none."""
    goods: Goods | None
    rollback: bool = False
    """Whether the version may be lower than the one that is served."""


class SignedOrder(msgspec.Struct, frozen=True, array_like=True):
    """An order as it travels: the bytes that were signed."""

    order: Annotated[bytes, msgspec.Meta(max_length=1000)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    def read(self) -> Order | None:
        """What it says, whoever signed it; None where that is no order."""
        try:
            return decoded(self.order, Order)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def signed_by(self, public: str) -> bool:
        """Whether the holder of this key gave the order."""
        from sojourn.protocol.signing import verify  # noqa: PLC0415  # cryptography's megabytes only where orders come

        return verify(public, self.order, self.signature)


def sign(order: Order, signer: Signer) -> SignedOrder:
    """The order with its signature, as it travels."""
    data = msgspec.msgpack.encode(order)
    return SignedOrder(data, signer.sign(data))


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """How long predictions took, in microseconds."""

    median: Microseconds
    p95: Microseconds


class TaskHealth(msgspec.Struct, frozen=True, array_like=True):
    """How a release of another task than a classification does on the device's own data."""

    measure: MetricName
    """The task's main figure by name."""
    figure: Measure = nan
    before: Measure = nan
    """The same of the release before it."""
    threshold: Measure = nan
    """Of a reconstruction: from which score on a sample counts as an anomaly here."""

    def __post_init__(self) -> None:
        check_figures(self)


class Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a release does on a device: less than a kilobyte.

    What was tried when it came: `rows` inputs (the device's own labelled data, else the card's), given to the release
    and to the one before it. What came since: predictions that programs asked for.
    """

    rows: Number = 0
    pace: Pace | None = None
    pace_before: Pace | None = None
    accuracy: Accuracy = nan
    accuracy_before: Accuracy = nan
    drift: Portion = 0.0
    """How many of the same inputs' classes came out in another mix than before: total variation, 0 to 1."""
    predictions: Number = 0
    live: Pace | None = None
    live_before: Pace | None = None
    live_drift: Portion = 0.0
    """The same for the predictions since, against those with the release before; 0 while either has too few."""
    errors: Number = 0
    """What programs reported as wrong."""
    mix: Annotated[tuple[Portion, ...], msgspec.Meta(max_length=64)] = ()
    """How often each class was predicted since, of all; the first classes where there are many. What stands for
    classes in other tasks: `sojourn.model.answers`."""
    task: TaskHealth | msgspec.UnsetType = msgspec.UNSET
    """Of a release whose main figure is not the accuracy; unset before 0.7.0."""

    def __post_init__(self) -> None:
        check_figures(self)


class HealthRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a stage of a rollout counts as unhealthy.

    failures: the share of a stage's devices that may be unhealthy. latency: how many times as long as before the 95th
    percentile may take. accuracy: how far it may fall, in shares (0.02 is two points). worse: by which share of what
    it was another main figure may become worse (0.1: an error may grow by a tenth). drift: how far the mix of predicted
    classes, or of what stands for them, may move. errors: how many errors programs may report on one device. soak: how
    many seconds all devices of a stage must have been well. patience: how many seconds to wait for devices that do not
    answer. quorum: how many devices must complain before the fleet turns back, or all where it has fewer; 1 takes each
    device's word.
    """

    failures: Share = 0.0
    latency: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 2.0
    accuracy: Share = 0.02
    drift: Share = 0.3
    errors: Number = 0
    soak: Annotated[float, msgspec.Meta(ge=0, le=1e7)] = 10.0
    patience: Annotated[float, msgspec.Meta(ge=0, le=1e7)] = 600.0
    quorum: Annotated[int, msgspec.Meta(ge=1, le=1000)] | msgspec.UnsetType = msgspec.UNSET

    worse: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def company(self) -> int:
        """The quorum, also where it is unset: then a coordinator from before 0.3.0 takes the rules, too."""
        return self.quorum or QUORUM

    @property
    def worst(self) -> float:
        """How much worse a main figure may be, also where that is unset: as for a coordinator from before 0.7.0."""
        return WORSE if self.worse is msgspec.UNSET else self.worse


RolloutStatus = Literal["running", "paused", "halted", "rolling-back", "rolled-back", "done"]


class DeviceView(msgspec.Struct, frozen=True):
    """A device of a model line as a person sees it."""

    device: Label
    stage: Number
    """The stage that brings the release to it; 0 for none so far."""
    serial: Identity
    version: Number
    state: Label
    detail: LongText = ""
    health: Health | None = None


class RolloutTurn(msgspec.Struct, frozen=True, array_like=True):
    """When a rollout took another way, and why."""

    at: Moment
    status: RolloutStatus
    version: Number
    """The version that it was about."""
    detail: Text = ""


class RolloutPlan(msgspec.Struct, frozen=True):
    """By which rules a rollout goes on or turns back."""

    rules: HealthRules
    undo: bool
    """Whether an ill stage is undone at once; else the rollout only halts."""
    turns: Annotated[tuple[RolloutTurn, ...], msgspec.Meta(max_length=100)] = ()
    """What became of the line's rollouts, the oldest first; in lists only the newest."""


class LineView(msgspec.Struct, frozen=True):
    """A model line as a person sees it: its newest rollout."""

    line: Label
    status: RolloutStatus
    detail: LongText
    serial: Identity
    """The highest that any order of the line has."""
    version: Number
    before: Number
    """The version that an undone rollout returns to; 0 for none."""
    serves: Number
    """The version that the fleet is meant to serve."""
    goods: Goods | None
    """Its blobs."""
    stages: Annotated[tuple[Share, ...], msgspec.Meta(max_length=20)]
    stage: Number
    counts: Annotated[dict[Label, Number], msgspec.Meta(max_length=64)]
    """How many devices are in each state."""
    devices: Annotated[tuple[DeviceView, ...], msgspec.Meta(max_length=10_000)] = ()
    plan: RolloutPlan | msgspec.UnsetType = msgspec.UNSET
    """Unset before 0.9.0."""


def complaint(health: Health, rules: HealthRules) -> str | None:
    """Which rule a device's report breaks, in words; None when all is well."""
    for now, before, where in (
        (health.pace, health.pace_before, "on the same inputs"),
        (health.live, health.live_before, "in use"),
    ):
        if now and before and now.p95 > rules.latency * before.p95 and now.p95 - before.p95 > FELT:
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
        return f"{health.errors} errors were reported by programs"
    return None


def _worse(health: TaskHealth, rows: int, rules: HealthRules) -> str | None:
    name, lost = health.measure, worsening(health.measure, health.figure, health.before)
    if not lost > rules.worst:  # nor is what is not known worse
        return None
    now, before = (figure_text(name, each) for each in (health.figure, health.before))
    return f"{called(name)} became worse by {100 * lost:.0f} % on {rows} local samples ({before} to {now})"


def _us(microseconds: float) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"
