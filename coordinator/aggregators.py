"""How the tours' models become the next global model.

State goes in and comes out: `state` holds an aggregator's own vectors between rounds (momentum, second moments),
by name. The means keep none. Sums run in the order of the contributions, which is plan order, and in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from sojourn.parts import Aggregator, UniformMean, WeightedMean
from sojourn.vectors import mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]
    State = dict[str, Vector]


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a tour brings home: its model, and how many samples that has seen."""

    vector: Vector
    weight: float


def aggregate(
    settings: Aggregator, previous: Vector, contributions: Sequence[Contribution], state: State
) -> tuple[Vector, State]:
    """The next global model and the aggregator's next state; without anything to learn from, both stay as they are."""
    match settings:
        case WeightedMean():
            return _weighted_mean(previous, contributions), state
        case UniformMean():
            return _uniform_mean(previous, contributions), state
        case _:
            assert_never(settings)


def _weighted_mean(previous: Vector, contributions: Sequence[Contribution]) -> Vector:
    """The mean by samples; a tour that saw none has no say."""
    heard = [each for each in contributions if each.weight > 0]
    return mean((each.vector for each in heard), [each.weight for each in heard]) if heard else previous


def _uniform_mean(previous: Vector, contributions: Sequence[Contribution]) -> Vector:
    """The plain mean, whatever the samples: devices need not tell how many they have."""
    return mean((each.vector for each in contributions), [1.0] * len(contributions)) if contributions else previous
