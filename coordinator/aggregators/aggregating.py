"""How the tours' models become the next global model.

State goes in and comes out: `state` holds an aggregator's own vectors between merges (momentum, drift, control), by
name; what is not there yet has its initial value, and names that an aggregator does not know pass through. Sums run
in the order of the contributions, which is plan order, and in float64.

Without any model that has a say, the model stays as it is, and so does the state; only SCAFFOLD's control follows what
the devices returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregators.contributions import Contribution, MergeContext, State, Vector, mean_of, with_weight
from coordinator.aggregators.drift_correction import dyn, scaffold
from coordinator.aggregators.fusing import fusion
from coordinator.aggregators.inverse_distance import ida
from coordinator.aggregators.server_optimisers import adaptive, avgm
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
    Weighting,
    Yogi,
    own,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Arithmetic = Callable[[Any, Vector, Sequence[Contribution], State, MergeContext], tuple[Vector, State]]

__all__ = ["Contribution", "MergeContext", "State", "Vector", "aggregate", "first_state"]

RESERVED = ("model", "anchor", "front", "relay", "slot-", "sum-")
"""How the names of a job's own vectors begin: an aggregator of one's own keeps its vectors under others."""


def aggregate(
    settings: Aggregator, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """The next global model and the aggregator's next state."""
    return _AGGREGATORS[type(settings)](settings, previous, contributions, state, merge)


def first_state(settings: Aggregator, size: int) -> State:
    """The vectors that must exist before the first round: those that travel to the devices, all 0."""
    return {name: np.zeros(size, np.float32) for name in settings.sends}


def _weighted_mean(
    _: WeightedMean, previous: Vector, contributions: Sequence[Contribution], state: State, __: MergeContext
) -> tuple[Vector, State]:
    """The mean by samples; a tour that saw none has no say."""
    return _mean(previous, contributions, "samples"), state


def _uniform_mean(
    _: UniformMean, previous: Vector, contributions: Sequence[Contribution], state: State, __: MergeContext
) -> tuple[Vector, State]:
    """The plain mean, whatever the samples: devices need not tell how many they have."""
    return _mean(previous, contributions, "uniform"), state


def _mean(previous: Vector, contributions: Sequence[Contribution], weighting: Weighting) -> Vector:
    voices = with_weight(contributions, weighting)
    return mean_of(voices, weighting).astype(np.float32) if voices else previous


def _own(
    settings: OwnAggregator, previous: Vector, contributions: Sequence[Contribution], state: State, merge: MergeContext
) -> tuple[Vector, State]:
    """What a user's own part makes of it; it is asked when there is a model, or anything that devices returned.

    Vectors that it keeps must be as long as the model; those that it does not give back stay as they were.
    """
    if not contributions and not merge.returned:
        return previous, state
    part = own.load(settings, "aggregate")
    match part.aggregate(previous, contributions, state, merge):
        case (vector, dict(kept)):
            pass
        case other:
            raise JobError(f"{settings.part} gave {type(other).__name__}, not a model and a dict of vectors")
    for name, each in [("model", vector), *((f'state "{name}"', vector) for name, vector in kept.items())]:
        if fault := _fault(each, len(previous)):
            raise JobError(f"{settings.part}: its {name} is {fault}, not {len(previous)} finite float32 numbers")
    if taken := [name for name in kept if str(name).startswith(RESERVED)]:
        raise JobError(f"{settings.part}: its state may not be called {', '.join(taken)}: the job has such vectors")
    return vector, {**state, **kept}


def _fault(vector: object, size: int) -> str:
    """What is wrong with a vector that must have this size; nothing, if it is as it should be."""
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
    OwnAggregator: _own,
}
