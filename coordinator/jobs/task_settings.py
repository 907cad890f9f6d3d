"""The table `[task]` of a job file: what is learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from sojourn.parts import Count
from sojourn.protocol.task import Beside, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.jobs.settings import JobData

LOSSES: dict[Kind, tuple[str, ...]] = {
    "classification": ("cross-entropy",),
    "multilabel": ("binary-cross-entropy",),
    "regression": ("mse", "l1", "huber"),
    "reconstruction": ("mse", "l1", "huber"),
    "forecast": ("mse", "l1", "huber"),
    "tokens": ("cross-entropy",),
}
"""The losses of each kind that have a name, the usual one first."""


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is learnt, and by which loss."""

    kind: Kind = "classification"
    """`classification`: one class of several; `multilabel`: any number of classes; `regression`: one or several
    quantities; `reconstruction`: the sample itself, which shows what is unlike the others; `forecast`: the next values
    of a series; `tokens`: the next token at each place of a sequence."""
    loss: str | None = None
    """What is minimised: `mse`, `l1` or `huber` (of quantities), or a function of one's own as
    `package.module:function`, of the model's outputs and the targets; as usual for the kind unless told. Example:
    `"huber"`."""
    targets: tuple[str, ...] = ()
    """The quantities by name: columns of CSV files, or what the columns of an array mean. Example:
    `["temperature", "load"]`."""
    strata: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 10
    """Into how many groups exemplars without classes fall, by which devices are told apart."""
    steps: Count | None = None
    """Of a forecast: how many values of the series the model sees. Example: `48`."""
    horizon: Count = 1
    """Of a forecast: how many values it predicts."""
    stride: Count = 1
    """Of a forecast: from each window to the next one."""
    vocabulary: Annotated[int, msgspec.Meta(ge=2, le=1 << 20)] | None = None
    """Of tokens: how many different ones there are; unless told, as many as the test set has. Example: `256`."""
    normal: tuple[str, ...] = ("normal", "ok", "good", "0", "false", "False")
    """Of a reconstruction: the labels of samples that are as they should be; a test set may have others, to tell how
    well these are found."""
    features: tuple[str, ...] = ()
    """Layers of the model, by name, whose outputs a loss of one's own is given. Example: `["encoder"]`."""
    beside: tuple[Beside, ...] = ()
    """Further models whose outputs a loss of one's own is given: `start`, the model with which the visit began.
    Example: `["start"]`."""

    @property
    def plain(self) -> bool:
        """Whether it is one class of several by cross-entropy."""
        return self.kind == "classification" and self.loss in (None, *LOSSES["classification"])

    @property
    def own_loss(self) -> bool:
        """Whether the loss is a function of one's own."""
        return self.loss is not None and ":" in self.loss


def objections_to_task(task: TaskSettings, data: JobData) -> Iterator[str]:
    """What speaks against the table `[task]`, each as a sentence."""
    yield from _objections_to_loss(task)
    yield from _objections_to_kind(task)
    if data.classes and task.kind not in ("classification", "multilabel"):
        yield f"data.classes are of a classification, and task.kind is {task.kind!r}: leave them out"
    if data.dtype == "int64" and task.kind == "reconstruction":
        yield 'whole numbers cannot be reconstructed: leave data.dtype out, or set task.kind = "tokens"'


def _objections_to_loss(task: TaskSettings) -> Iterator[str]:
    if task.loss is not None and not task.own_loss and task.loss not in LOSSES[task.kind]:
        known = " or ".join(repr(each) for each in LOSSES[task.kind])
        yield (
            f"task.loss = {task.loss!r} is no loss of the kind {task.kind!r}: take {known}, or name a function of your "
            'own as "package.module:function"'
        )
    if (task.features or task.beside) and not task.own_loss:
        yield "task.features and task.beside are for a loss of your own: name it in task.loss"
    if len(set(task.beside)) < len(task.beside):
        yield "task.beside names a model twice"


def _objections_to_kind(task: TaskSettings) -> Iterator[str]:
    if task.kind == "forecast" and task.steps is None:
        yield "a forecast needs task.steps: how many values of the series the model sees"
    if task.kind != "forecast" and task.steps is not None:
        yield f"task.steps is of a forecast, and task.kind is {task.kind!r}"
    if task.vocabulary is not None and task.kind != "tokens":
        yield f"task.vocabulary is of tokens, and task.kind is {task.kind!r}"
    if task.targets and task.kind not in ("regression", "forecast"):
        yield f"task.targets are quantities, and task.kind = {task.kind!r} has none"
    if len(set(task.targets)) < len(task.targets):
        yield "task.targets names a quantity twice"


def lacking_without_test(task: TaskSettings, data: JobData) -> str | None:
    """What a job without a test set and exemplars must say besides."""
    match task.kind:
        case "classification" | "multilabel":
            return None if data.classes and data.input else "both data.classes and data.input"
        case "regression":
            return None if task.targets and data.input else "both task.targets and data.input"
        case "tokens":
            return None if task.vocabulary and data.input else "both task.vocabulary and data.input"
        case _:
            return None if data.input else "data.input"
