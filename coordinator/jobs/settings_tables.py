"""The tables [task], [tours] and [gate] of a job file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from sojourn.errors import ConfigError
from sojourn.parts import Cosine, Count, Evidence, Factor, Gate, Positive, Samples, Share, TourBounds, TourPolicy
from sojourn.protocol.task import Kind, ReferenceModel

if TYPE_CHECKING:
    from coordinator.jobs.settings import JobData


LOSSES: dict[Kind, tuple[str, ...]] = {
    "classification": ("cross-entropy",),
    "multilabel": ("binary-cross-entropy",),
    "regression": ("mse", "l1", "huber"),
    "reconstruction": ("mse", "l1", "huber"),
    "forecast": ("mse", "l1", "huber"),
    "tokens": ("cross-entropy",),
}
"""The built-in losses of each kind, the default first."""


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The task and its loss."""

    kind: Kind = "classification"
    """`classification`: one class of several; `multilabel`: any number of classes; `regression`: one or several
    quantities; `reconstruction`: the sample itself, which reveals unusual samples; `forecast`: the next values of a
    series; `tokens`: the next token at each place of a sequence.
    """
    loss: str | None = None
    """The loss: `mse`, `l1` or `huber` for quantities, or a custom function of the model's outputs and the targets as
    `package.module:function`; by default the usual loss of the kind. Example: `"huber"`.
    """
    targets: tuple[str, ...] = ()
    """The names of the quantities: columns of CSV files, or the meaning of the columns of an array. Example:
    `["temperature", "load"]`.
    """
    strata: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 10
    """The number of groups into which exemplars without classes are divided, for signatures of devices."""
    steps: Count | None = None
    """For a forecast: how many values of the series are the model's input. Example: `48`."""
    horizon: Count = 1
    """For a forecast: how many values the model predicts."""
    stride: Count = 1
    """For a forecast: the distance from each window to the next one."""
    vocabulary: Annotated[int, msgspec.Meta(ge=2, le=1 << 20)] | None = None
    """For tokens: the number of different tokens; by default that of the test set. Example: `256`."""
    normal: tuple[str, ...] = ("normal", "ok", "good", "0", "false", "False")
    """For a reconstruction: the labels of normal samples. A test set may have other labels; the test then measures how
    well those samples are detected.
    """
    features: tuple[str, ...] = ()
    """The names of layers of the model whose outputs a custom loss receives. Example: `["encoder"]`."""
    reference_models: tuple[ReferenceModel, ...] = ()
    """Further models whose outputs a custom loss receives: `start`, the model with which the visit began. Example:
    `["start"]`.
    """

    @property
    def plain(self) -> bool:
        """Whether it is a plain classification by cross-entropy."""
        return self.kind == "classification" and self.loss in (None, *LOSSES["classification"])

    @property
    def custom_loss(self) -> bool:
        """Whether the loss is a custom function."""
        return self.loss is not None and ":" in self.loss


def objections_to_task(task: TaskSettings, data: JobData) -> Iterator[str]:
    """Return each problem of the table `[task]` as a sentence."""
    yield from _objections_to_loss(task)
    yield from _objections_to_kind(task)
    if data.classes and task.kind not in ("classification", "multilabel"):
        yield f"data.classes is only for a classification, and task.kind is {task.kind!r}: leave it out"
    if data.dtype == "int64" and task.kind == "reconstruction":
        yield 'whole numbers cannot be reconstructed: leave data.dtype out, or set task.kind = "tokens"'


def _objections_to_loss(task: TaskSettings) -> Iterator[str]:
    if task.loss is not None and not task.custom_loss and task.loss not in LOSSES[task.kind]:
        known = " or ".join(repr(each) for each in LOSSES[task.kind])
        yield (
            f"task.loss = {task.loss!r} is not a loss of the kind {task.kind!r}: set {known}, or name a custom "
            'function as "package.module:function"'
        )
    if (task.features or task.reference_models) and not task.custom_loss:
        yield "task.features and task.reference_models are only for a custom loss: name it in task.loss"
    if len(set(task.reference_models)) < len(task.reference_models):
        yield "task.reference_models lists a model twice"


def _objections_to_kind(task: TaskSettings) -> Iterator[str]:
    if task.kind == "forecast" and task.steps is None:
        yield "a forecast needs task.steps: how many values of the series are the model's input"
    if task.kind != "forecast" and task.steps is not None:
        yield f"task.steps is only for a forecast, and task.kind is {task.kind!r}"
    if task.vocabulary is not None and task.kind != "tokens":
        yield f"task.vocabulary is only for tokens, and task.kind is {task.kind!r}"
    if task.targets and task.kind not in ("regression", "forecast"):
        yield f"task.targets names quantities, which task.kind = {task.kind!r} does not have"
    if len(set(task.targets)) < len(task.targets):
        yield "task.targets lists a quantity twice"


def keys_without_test(task: TaskSettings, data: JobData) -> str | None:
    """Return the keys that a job without a test set and exemplars must set, if any is missing."""
    match task.kind:
        case "classification" | "multilabel":
            return None if data.classes and data.input else "both data.classes and data.input"
        case "regression":
            return None if task.targets and data.input else "both task.targets and data.input"
        case "tokens":
            return None if task.vocabulary and data.input else "both task.vocabulary and data.input"
        case _:
            return None if data.input else "data.input"


DEFAULT_LEASES = 60
"""The default time limit of a visit, in leases."""
MIN_SPREAD, MAX_SPREAD = 0.2, 1e6
"""A rise of the loss within MIN_SPREAD of the usual is never refused; a spread above MAX_SPREAD sets no limit."""
OPEN = Gate(norm_factor=None, loss_factor=None)
"""A gate that accepts every finite model."""
MODES: dict[str, dict[str, Any]] = {"enforce": {}, "report": {"report": True}, "off": {"on": False}}
"""The tables for `gate = "..."`."""


def gate_table(mode: str) -> dict[str, Any]:
    """Return the `[gate]` table for a mode."""
    if mode not in MODES:
        raise ConfigError(f"gate = {mode!r} is not a mode of the gate: write {', '.join(map(repr, MODES))}, or a table")
    return MODES[mode]


class TourSettings(TourPolicy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a failed visit or site is handled, and how long a visit may take."""

    deadline: Positive | None = None
    """The maximum seconds for one visit in total, however often the device reports progress; by default 60 leases.
    Example: `3600`.
    """

    @property
    def policy(self) -> TourPolicy:
        """The settings that every version of an edge server supports."""
        return TourPolicy(**{name: getattr(self, name) for name in TourPolicy.__struct_fields__})

    @property
    def visit_deadline(self) -> float:
        """The maximum seconds of one visit."""
        return DEFAULT_LEASES * self.lease if self.deadline is None else self.deadline


class GateSettings(Gate, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The checks that results must pass, and the maximum weight of a device.

    `gate = "report"` is short for `report = true`, and `gate = "off"` for `on = false`. The rules on the loss need
    exemplars: without them they are off.
    """

    on: bool = True
    """`false`: models need only be finite and of the right length, and no device's weight is limited."""
    report: bool = False
    """`true`: every result is kept unless it is damaged, no device's weight is limited, and the reports count and name
    the results that the gate would have refused. The default of `simulate`, `compare` and `papers`.
    """
    loss_factor: Factor | None = 2.0
    """The maximum factor by which the loss on the exemplars may grow at a visit, in addition to the usual growth among
    the devices.
    """
    spread_factor: Factor = 15.0
    """The maximum growth of the loss above the usual growth, as a multiple of the devices' median deviation, if that is
    below the limit of loss_factor.
    """
    against_factor: Factor = 1.2
    """The maximum factor by which the loss may grow if the update points against the exemplars."""
    least_cosine: Cosine = -0.5
    """An update points against the exemplars if its cosine to their steepest descent is below this."""
    most_evidence: Evidence = 0.4
    """The maximum evidence for false labels or a wrong direction if a classifier's loss rose by more than
    against_factor: most honest updates are below 0, most attacks above 0.5.
    """
    clip: bool = True
    """Whether an update that is only too long is shortened instead of refused."""
    most_samples: Samples = 1_000_000
    """The maximum number of samples that counts for one device."""
    most_share: Share = 0.5
    """The maximum share of one device in the weight of a merge by samples, with four devices or more."""

    @property
    def rules(self) -> Gate:
        """The rules that every version of an edge server supports."""
        return Gate(norm_factor=self.norm_factor, loss_factor=self.loss_factor) if self.on else OPEN

    def bounds(
        self, deadline: float, usual_samples: int | None = None, rises: tuple[float, float] = (1.0, math.inf)
    ) -> TourBounds:
        """Return the further limits for an edge server; with the gate off, only the deadline.

        rises: the median of the factors by which visits increased the loss on the exemplars, and their median
        deviation.
        """
        if not self.on:
            return TourBounds(deadline=deadline)
        most_rise = rises[0] + max(MIN_SPREAD, self.spread_factor * rises[1]) if rises[1] < MAX_SPREAD else None
        return TourBounds(
            deadline=deadline,
            against_factor=self.against_factor,
            least_cosine=self.least_cosine,
            clip=self.clip and not self.report,
            most_samples=None if self.report else self.most_samples,
            most_share=None if self.report else self.most_share,
            usual_samples=usual_samples,
            usual_rise=rises[0],
            most_rise=most_rise,
            report=self.report,
            most_evidence=self.most_evidence,
        )
