"""What a strategy asks of devices and their owners, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.parts import (
    ClassCountEstimator,
    Common,
    Echo,
    Elmy,
    Generated,
    LocalNorms,
    NoEstimator,
    Outliers,
    OwnObjective,
    Sam,
    Scaffold,
    SizeEstimator,
    TwoStreamPart,
    UpdateEstimator,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.strategies.strategy import Strategy
    from sojourn.parts import Estimator


def requirements_of(strategy: Strategy) -> list[str]:
    """What devices must tell, do and keep besides training the model that they are handed."""
    return [*_estimation(strategy.estimator), *_training(strategy), *_telling(strategy)]


def _estimation(estimator: Estimator) -> Iterator[str]:
    match estimator:
        case NoEstimator():
            return
        case SizeEstimator():
            yield "samples told: how many each device has, before the first round; nothing is trained for it"
        case ClassCountEstimator():
            yield "class counts: each device tells its label histogram, if its owner shares it"
        case UpdateEstimator() if estimator.from_visits:
            yield "samples told: how many each device has, before the first round; nothing is trained for it"
            yield "updates: the server keeps each device's last one"
        case _:
            yield f"one more visit for each device, of {estimator.epochs} epochs, before it first takes part"
            if estimator.exemplars:
                where = "sent to devices" if getattr(estimator, "where", "server") == "device" else "held by the server"
                yield f"exemplars: a few public labelled samples of each class, {where}"


def _training(strategy: Strategy) -> Iterator[str]:  # noqa: C901  # one short case for each objective
    objective = strategy.objective
    match objective:
        case OwnObjective():
            yield f"{objective.part} installed on each device, and its owner's leave to run it"
        case Elmy():
            yield f"memory for {objective.models + 2} models during a visit, and {objective.models} trainings"
        case LocalNorms():
            yield "memory for the model's BatchNorm layers between visits; they never leave the device"
        case Common():
            yield "memory for a model of its own between visits, and for two during one"
            yield f"{100 * objective.validation:g} % of the samples held out to choose between models"
        case Echo():
            yield "projections: one more pass over the data, and which inputs its layers see, if its owner shares that"
            yield f"up to {objective.memory:g} MB of memory for them: d x d numbers for a layer of d inputs"
        case Outliers():
            yield "images, and the work of about ten plain steps for each step: outliers are made and learnt from"
        case Sam():
            yield "two gradients for each step"
        case Scaffold():
            yield "memory for a control variate between visits; one more vector each way"
        case TwoStreamPart():
            yield from _second_stream(objective)
        case _ if objective.keeps:
            yield "memory for one vector of the model's size between visits"
        case _:
            pass


def _second_stream(objective: TwoStreamPart) -> Iterator[str]:
    frozen = len(objective.anchors)
    yield f"{frozen} frozen model{'s' if frozen > 1 else ''} beside the trained one: as many passes forward more a step"
    if objective.keeps:
        yield "memory for one model between visits"
    if objective.receives:
        yield "one more vector down: the round's model"


def _telling(strategy: Strategy) -> Iterator[str]:
    """Where one model travels alone there is nothing to weigh."""
    if isinstance(strategy.objective, LocalNorms | Common) and strategy.objective.test:
        share = 100 * strategy.objective.test
        yield f"own figures told: how good the device's own model is on {share:g} % of its samples, held out for that"
    if isinstance(strategy.objective, Generated):
        yield "class counts: each device tells how many samples of each class it saw, if its owner shares them"
    by_samples = getattr(strategy.aggregator, "weighting", None) == "samples"
    if by_samples and not strategy.schedule.in_turn:
        yield "samples told: how many a model has seen is its weight"
