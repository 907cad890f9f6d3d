"""What a job learns: the kind of task, what a model answers for a sample, and the strata that stand for classes.

A kit without a task is a classifier, as all kits were before 0.7.0.
"""

from __future__ import annotations

from math import log
from typing import Annotated, Literal

import msgspec

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=8)]

Kind = Literal["classification", "multilabel", "regression", "reconstruction", "forecast", "tokens"]
"""classification: one class of several. multilabel: any number of classes. regression: one or several quantities.
reconstruction: the sample itself, so that what is unlike the others shows (anomalies). forecast: the next values of a
series. tokens: the next token at each place of a sequence."""
Beside = Literal["start"]
"""A further model that a loss is given: the one with which the visit began."""


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a sample is compared with: the shape and type of one target, as devices have it, unscaled.

    Class numbers have the shape () and are int64; a multilabel target is 0 or 1 for each class.
    """

    shape: Shape
    dtype: Literal["float32", "int64"] = "float32"


class Strata(msgspec.Struct, frozen=True, omit_defaults=True):
    """How samples without classes fall into groups, as the job's exemplars did: into `count` of them, from 0 on.

    With `edges` by one number, their quantiles: stratum s holds what lies above edge s - 1 and up to edge s. With
    `centres` by several: the nearest centre, where each number is divided by its `scale` first. What the numbers of a
    sample are depends on the task (`sojourn.model.strata`).
    """

    count: Size
    edges: tuple[float, ...] = ()
    centres: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a series is cut: `steps` values that are seen, then `horizon` that are to come; a window each `stride`."""

    steps: Size
    horizon: Size
    stride: Size = 1


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The task of a kit, where it is no plain classifier."""

    kind: Kind
    output: Shape
    """The shape of what the model answers for one sample, in the target's own units."""
    target: Target | None
    """None where a sample is its own target (reconstruction)."""
    strata: Strata
    names: tuple[str, ...] = ()
    """The quantities by name: columns of a regression's target, channels that are forecast; may be empty."""
    loss: str = ""
    """Which loss, for people: `mse`, `huber`, or the function's own name."""
    blind: float = 1.0
    """The mean loss of answers that know nothing: what a loss is held against."""
    window: Window | None = None
    """Of a forecast."""
    beside: tuple[Beside, ...] = ()
    """Further models that the loss looks at: inputs `beside_0`, ... of the training and the scoring graph."""
    normal: tuple[str, ...] = ()
    """Of a reconstruction: the labels of samples that are as they should be; if there are none, all labels are."""
    ranges: tuple[tuple[float, float], ...] = ()
    """The least and the largest value of each quantity in the job's own samples, in the order of the last axis of a
    target: a device with others by far has them in another unit."""

    @property
    def answers(self) -> str:
        """What the prediction graph calls its result."""
        return "logits" if self.kind == "classification" else "outputs"


def classes_as_strata(classes: int) -> TaskSpec:
    """What a kit without a task learns, said as one: a class of several by cross-entropy."""
    return TaskSpec(
        "classification", (max(1, classes),), Target((), "int64"), Strata(max(1, classes)), blind=log(max(2, classes))
    )
