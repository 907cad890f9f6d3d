"""A merge of models that have state, such as running statistics: its mean is taken, whatever the aggregator.

An optimiser's step on a variance may make it negative, a drift correction has no meaning for it, and a distance would
be governed by it. So aggregators see the trained numbers alone, and what they keep is as long as these; beside the
whole model it stands with zeros for the state, so that all vectors of a job have one length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregators.aggregating import aggregate
from coordinator.aggregators.contributions import Contribution, mean_of, weighting_of, with_weight

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.aggregators.contributions import MergeContext, State, Vector
    from sojourn.parts import Aggregator


def aggregate_with_state(
    learnt: int,
    settings: Aggregator,
    previous: Vector,
    contributions: Sequence[Contribution],
    state: State,
    merge: MergeContext,
) -> tuple[Vector, State]:
    """The next global model and the aggregator's next state, of models whose first `learnt` numbers are trained."""
    trained = [replace(each, vector=each.vector[:learnt]) for each in contributions]
    seen = replace(merge, returned=_cut(merge.returned, learnt))
    model, kept = aggregate(settings, previous[:learnt], trained, _cut(state, learnt), seen)
    rest = [replace(each, vector=each.vector[learnt:]) for each in contributions]
    nothing = np.zeros(len(previous) - learnt, np.float32)
    whole = {name: np.concatenate([vector, nothing]) for name, vector in kept.items()}
    return np.concatenate([model, _merged(settings, previous[learnt:], rest)]), whole


def _merged(settings: Aggregator, previous: Vector, states: Sequence[Contribution]) -> Vector:
    """The mean, as the aggregator weighs models; without any that has a say, the state of before."""
    weighting = weighting_of(settings)
    voices = with_weight(states, weighting)
    return mean_of(voices, weighting).astype(np.float32) if voices else previous


def _cut(vectors: Mapping[str, Vector], learnt: int) -> State:
    return {name: vector[:learnt] for name, vector in vectors.items()}
