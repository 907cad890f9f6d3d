"""The task of a job, and the abilities that it requires of a device."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import msgspec

from sojourn.parts import Encoding, Estimator, Objective, Outcome, Training

if TYPE_CHECKING:
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import Offer


# The task of a job: its kind, the model's output for a sample, and the strata that replace classes.
#
# A kit without a task is a classifier.

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=8)]

Kind = Literal["classification", "multilabel", "regression", "reconstruction", "forecast", "tokens"]
"""classification: one of several classes. multilabel: any number of classes. regression: one or several quantities.
reconstruction: the sample itself, so that unusual samples (anomalies) stand out. forecast: the next values of a series.
tokens: the next token at each place of a sequence."""
ReferenceModel = Literal["start"]
"""A further model that a loss uses: the one with which the visit began."""


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """The target of a sample: its shape and type, as devices have it, unscaled.

    Class numbers have the shape () and are int64; a multilabel target is 0 or 1 for each class.
    """

    shape: Shape
    dtype: Literal["float32", "int64"] = "float32"


class Strata(msgspec.Struct, frozen=True, omit_defaults=True):
    """How samples without classes are divided into `count` groups, numbered from 0, as the job's exemplars were.

    With `edges`, by the quantiles of one number: stratum s is above edge s - 1 and up to edge s. With `centres`, by the
    nearest centre of several numbers, each divided by its `scale` first. The task determines the numbers of a sample
    (`sojourn.model.strata`).
    """

    count: Size
    edges: tuple[float, ...] = ()
    centres: tuple[tuple[float, ...], ...] = ()
    scale: tuple[float, ...] = ()


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a series is cut: `steps` input values, then `horizon` values to predict; a window starts each `stride`."""

    steps: Size
    horizon: Size
    stride: Size = 1


class TaskSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The task of a kit that is not a plain classifier."""

    kind: Kind
    output: Shape
    """The shape of the model's output for one sample, in the target's own units."""
    target: Target | None
    """None if a sample is its own target (reconstruction)."""
    strata: Strata
    names: tuple[str, ...] = ()
    """The quantities by name: columns of a regression's target, channels of a forecast; may be empty."""
    loss: str = ""
    """The name of the loss: `mse`, `huber`, or a custom function's name."""
    blind: float = 1.0
    """The mean loss of uninformed outputs, as a reference for losses."""
    window: Window | None = None
    """Only for a forecast."""
    reference_models: tuple[ReferenceModel, ...] = ()
    """Further models that the loss uses: inputs `reference_0`, ... of the training and the scoring graph."""
    normal: tuple[str, ...] = ()
    """For a reconstruction: the labels of normal samples; if empty, all labels are normal."""
    ranges: tuple[tuple[float, float], ...] = ()
    """The smallest and the largest value of each quantity in the job's own samples, in the order of a target's last
    axis: a device with very different values uses another unit."""

    @property
    def answers(self) -> str:
        """The name of the prediction graph's result."""
        return "logits" if self.kind == "classification" else "outputs"


def classes_as_strata(classes: int) -> TaskSpec:
    """Return the task of a kit without one: one of several classes by cross-entropy."""
    return TaskSpec(
        "classification", (max(1, classes),), Target((), "int64"), Strata(max(1, classes)), blind=log(max(2, classes))
    )


# The abilities that a task requires of a device in addition to its objective, in the words of an offer.
#
# A device gets only tasks within its offer: a new encoding, optimiser or estimator is a new word, and is used only by
# devices that list it.

_OF_MODEL = "model "
"""Prefix of the words that a kit requires."""
_OPTIMISERS = ("sgd", "adam")
_OF_TASKS = (
    *(f"encoding {word}" for word in get_args(Encoding)),
    *(f"optimiser {word}" for word in _OPTIMISERS),
    *(f"estimator {form.__struct_config__.tag}" for form in get_args(Estimator)),
)
MODEL_STATE = "model state"
"""Train models that have state, such as BatchNorm's running statistics (`sojourn.protocol.spec.ModelSpec.state`)."""
MODEL_FROZEN = "model frozen"
"""Insert frozen weights into a kit's graphs; a kit contains them once (`sojourn.model.session`)."""
MODEL_TRUNK = "model trunk"
"""Train behind a part of the model that is a separate graph (`sojourn.protocol.spec.Trunk`)."""
MODEL_OWN = "model own"
"""Store a model, or a part of one, on the device: the objectives of FedBN and of MetaFed."""
MODEL_TWO_STREAM = "model two-stream"
"""Train with a graph that also uses frozen models (`sojourn.protocol.spec.TwoStreamGraph`)."""
MANDATE = "mandate"
"""Accept only jobs that an operator has signed (`sojourn.protocol.mandates`). Devices whose owners trust operators'
keys list it, and get no task without a mandate. All others ignore mandates."""
MODEL_TASKS = {kind: f"model task {kind}" for kind in get_args(Kind)}
"""Train for other tasks than one of several classes by cross-entropy (`sojourn.protocol.task`), by kind."""
_LED = ("echo", "outliers", "generated", "logit-adjustment")
OBJECTIVES = {name: f"model objective {name}" for name in _LED}
"""Objectives that an edge server must know too, to lead their tours."""
OF_MODELS = (
    MODEL_STATE,
    MODEL_FROZEN,
    MODEL_TRUNK,
    *MODEL_TASKS.values(),
    MODEL_OWN,
    MODEL_TWO_STREAM,
    *OBJECTIVES.values(),
)
"""Abilities that a kit or an objective may require of a device, and of the edge server that leads its model there."""
ABILITIES = (*_OF_TASKS, *OF_MODELS)
"""All abilities of this version's agent."""


def asked(
    encoding: Encoding,
    training: Training,
    estimator: Estimator,
    of_model: Iterable[str] = (),
    outcome: Outcome = "one model",
) -> frozenset[str]:
    """Return the words for what a job's tasks require of a device, with those of its model and its outcome."""
    return frozenset(
        {
            *of_model,
            *((MODEL_OWN,) if outcome == "own models" else ()),
            f"encoding {encoding}",
            f"optimiser {training.optimiser}",
            f"estimator {estimator.__struct_config__.tag}",
        }
    )


def asked_for(objective: Objective) -> tuple[str, ...]:
    """Return what an objective requires in addition to its name: edge servers that know it."""
    word = OBJECTIVES.get(str(objective.__struct_config__.tag))
    return (word,) if word else ()


def asked_by(kit: Kit) -> tuple[str, ...]:
    """Return the abilities that a kit requires."""
    words = {
        MODEL_STATE: kit.model.state > 0,
        MODEL_FROZEN: bool(kit.frozen),
        MODEL_TRUNK: bool(kit.trunk),
        MODEL_TWO_STREAM: bool(kit.two_stream),
    }
    task = (MODEL_TASKS[kit.task.kind],) if kit.task else ()
    return (*(word for word, needed in words.items() if needed), *task)


def leads(site: Iterable[str], words: Iterable[str]) -> bool:
    """Return whether an edge server with these abilities can lead models that require these words."""
    return set(site).issuperset(word for word in words if word.startswith(_OF_MODEL))


def able(offer: Offer | None, objective: str, words: Iterable[str]) -> bool:
    """Return whether a device offers an objective and all of these words; one without an offer gets no task.

    A device that requires a mandate matches only if a mandate is among the words; others match in any case.
    """
    if offer is None or objective not in offer.objectives:
        return False
    known = frozenset(offer.abilities)
    signed = MANDATE in (words := frozenset(words))
    return known.issuperset(words - {MANDATE} if signed else words) and (signed or MANDATE not in known)
