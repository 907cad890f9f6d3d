"""The table `[task]` of a job file: what is learnt."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.parts import Count
from sojourn.protocol.task import Kind

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
    normal: tuple[str, ...] = ("normal", "ok", "good", "0", "false", "False")
    """Of a reconstruction: the labels of samples that are as they should be; a test set may have others, to tell how
    well these are found."""
    features: tuple[str, ...] = ()
    """Layers of the model, by name, whose outputs a loss of one's own is given. Example: `["encoder"]`."""
    beside: tuple[str, ...] = ()
    """Further models whose outputs a loss of one's own is given: `start`, the model with which the visit began.
    Example: `["start"]`."""
