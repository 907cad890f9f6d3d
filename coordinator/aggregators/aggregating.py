"""The entry point of all aggregators, including for models with state such as running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.aggregators.contributions import (
    Contribution,
    MergeContext,
    State,
    Vector,
    mean_or,
    weighting_of,
)
from coordinator.aggregators.server_updates import adaptive, avgm, dyn, fusion, ida, scaffold
from sojourn.errors import JobError
from sojourn.parts import (
    Adagrad,
    Adam,
    Aggregator,
    AvgM,
    DynServer,
    FusionMean,
    Ida,
    OwnAggregator,
    ScaffoldServer,
    UniformMean,
    WeightedMean,
    Yogi,
    custom_code,
)

Arithmetic = Callable[[Any, Vector, Sequence[Contribution], State, MergeContext], tuple[Vector, State]]

# How the tours' models become the next global model.
#
# State goes in and comes out. `state` holds an aggregator's own vectors between merges (momentum, drift, control) by
# name. A missing vector has its initial value, and vectors with other names pass through. Sums run in float64 in the
# order of the contributions, which is plan order.
#
# Without any model with a weight, the model and the state stay as they are; only SCAFFOLD's control follows what the
# devices returned.

__all__ = ["Contribution", "MergeContext", "State", "Vector", "aggregate", "first_state"]

RESERVED = ("model", "anchor", "front", "relay", "slot-", "sum-")
"""The prefixes of the job's own vector names, which a custom aggregator must not use."""


def aggregate(
    settings: Aggregator, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """Return the next global model and the aggregator's next state."""
    return _AGGREGATORS[type(settings)](settings, previous, contributions, state, merge)


def first_state(settings: Aggregator, size: int) -> State:
    """Return the vectors that must exist before the first round: those that are sent to devices, all 0."""
    return {name: np.zeros(size, np.float32) for name in settings.sends}


def _weighted_mean(
    _: WeightedMean, previous: Vector, contributions: Sequence[Contribution], state: State, __: MergeContext
) -> tuple[Vector, State]:
    """Return the mean weighted by samples; a tour without samples has no weight."""
    return mean_or(previous, contributions, "samples"), state


def _uniform_mean(
    _: UniformMean, previous: Vector, contributions: Sequence[Contribution], state: State, __: MergeContext
) -> tuple[Vector, State]:
    """Return the plain mean; devices need not report sample counts."""
    return mean_or(previous, contributions, "uniform"), state


def _custom(
    settings: OwnAggregator, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """Run a custom aggregator, if there is a model or something that devices returned.

    Vectors that it keeps must be as long as the model; those that it does not return stay as they were.
    """
    if not contributions and not merge.returned:
        return previous, state
    part = custom_code.load(settings, "aggregate")
    match part.aggregate(previous, contributions, state, merge):
        case (vector, dict(kept)):
            pass
        case other:
            raise JobError(f"{settings.part} returned {type(other).__name__}, not a model and a dict of vectors")
    for name, each in [("model", vector), *((f'state "{name}"', vector) for name, vector in kept.items())]:
        if fault := _fault(each, len(previous)):
            raise JobError(f"{settings.part}: its {name} is {fault}, not {len(previous)} finite float32 numbers")
    if taken := [name for name in kept if str(name).startswith(RESERVED)]:
        raise JobError(f"{settings.part}: its state uses the reserved names {', '.join(taken)}")
    return vector, {**state, **kept}


def _fault(vector: object, size: int) -> str:
    """Return what is wrong with a vector that must have this size; empty if it is valid."""
    if not isinstance(vector, np.ndarray):
        return f"of type {type(vector).__name__}"
    if vector.dtype != np.float32 or vector.shape != (size,):
        return f"{vector.dtype} of shape {vector.shape}"
    return "" if np.isfinite(vector).all() else "not finite"


_AGGREGATORS: dict[type[Aggregator], Arithmetic] = {
    WeightedMean: _weighted_mean,
    UniformMean: _uniform_mean,
    AvgM: avgm,
    Adagrad: adaptive,
    Adam: adaptive,
    Yogi: adaptive,
    Ida: ida,
    DynServer: dyn,
    ScaffoldServer: scaffold,
    FusionMean: fusion,
    OwnAggregator: _custom,
}


# Models with state, such as running statistics: every aggregator takes the mean of the state.
#
# An optimiser's step on a variance may make it negative, a drift correction has no meaning for it, and it would
# dominate a distance. So aggregators get only the trained parameters, and their own vectors have that length. They are
# stored with zeros in place of the state, so that all vectors of a job have the same length.


def aggregate_with_state(
    trainable_size: int,
    settings: Aggregator,
    previous: Vector,
    contributions: Sequence[Contribution],
    state: State,
    merge: MergeContext,
) -> tuple[Vector, State]:
    """Return the next model and aggregator state for models whose first `trainable_size` parameters are trained."""
    trained = [replace(each, vector=each.vector[:trainable_size]) for each in contributions]
    merge_of_trained = replace(merge, returned=_cut(merge.returned, trainable_size))
    model, kept = aggregate(settings, previous[:trainable_size], trained, _cut(state, trainable_size), merge_of_trained)
    rest = [replace(each, vector=each.vector[trainable_size:]) for each in contributions]
    zeros = np.zeros(len(previous) - trainable_size, np.float32)
    whole = {name: np.concatenate([vector, zeros]) for name, vector in kept.items()}
    mean = mean_or(previous[trainable_size:], rest, weighting_of(settings))  # the state has the weights of its model
    return np.concatenate([model, mean]), whole


def _cut(vectors: Mapping[str, Vector], trainable_size: int) -> State:
    return {name: vector[:trainable_size] for name, vector in vectors.items()}
