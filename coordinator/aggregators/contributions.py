"""The contributions of tours, their weights, and the float64 mean that every aggregator starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.model.vectors import blocks, weighted_mean_float64
from sojourn.parts import Aggregator, Objective, Weighting

Vector: TypeAlias = NDArray[np.float32]
Wide: TypeAlias = NDArray[np.float64]
State: TypeAlias = dict[str, Vector]


@dataclass(frozen=True, eq=False)
class Contribution:
    """The result of a tour: its model, and the samples that it was trained on since the last merge."""

    vector: Vector
    weight: float


@dataclass(frozen=True, eq=False)
class MergeContext:
    """The further inputs of a merge.

    devices: N, all devices that the job has had. returned: what objectives returned, summed over all visits since the
    last merge, by name. before: N at the last merge. gamma: the position of a fusion's parameters in a model.
    """

    devices: int
    objective: Objective
    returned: Mapping[str, Vector] = field(default_factory=dict)
    before: int | None = None
    gamma: slice | None = None

    @property
    def grown(self) -> float:
        """N at the last merge / N now: the factor for a mean over all devices when new devices contribute 0."""
        return self.before / self.devices if self.before else 1.0


def weighting_of(aggregator: Aggregator) -> Weighting:
    """Return how an aggregator weights models; edge servers and means between merges use the same weighting."""
    weighting: Weighting = getattr(aggregator, "weighting", "samples")
    return weighting


def with_weight(contributions: Sequence[Contribution], weighting: Weighting) -> list[Contribution]:
    """Return the contributions with a weight: by samples, those with samples; uniformly, all."""
    return [each for each in contributions if weighting == "uniform" or each.weight > 0]


def mean_of(weighted: Sequence[Contribution], weighting: Weighting) -> Wide:
    """Return the mean model in float64, summed in plan order."""
    weights = [1.0 if weighting == "uniform" else each.weight for each in weighted]
    return weighted_mean_float64([each.vector for each in weighted], weights)


def mean_or(previous: Vector, contributions: Sequence[Contribution], weighting: Weighting) -> Vector:
    """Return the mean of the models with a weight, or the previous model if there is none."""
    weighted = with_weight(contributions, weighting)
    return mean_of(weighted, weighting).astype(np.float32) if weighted else previous


def stepped(
    rule: Callable[[Wide, Wide, dict[str, Wide]], tuple[Wide, dict[str, Wide]]],
    mean: Wide,
    previous: Vector,
    kept: Mapping[str, NDArray[np.floating]],
) -> tuple[Vector, State]:
    """Apply a rule for (mean, w, state) in float64 to each parameter, block by block."""
    model = np.empty(len(previous), np.float32)
    state = {name: np.empty(len(previous), np.float32) for name in kept}
    for block in blocks(len(previous)):
        before = {name: vector[block].astype(np.float64) for name, vector in kept.items()}
        model[block], after = rule(mean[block], previous[block].astype(np.float64), before)
        for name, numbers in after.items():
            state[name][block] = numbers
    return model, state
