"""What the tours bring home, who of them has a say, and the float64 mean that every aggregator starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sojourn.model.vectors import blocks, wide_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sojourn.parts import Aggregator, Objective, Weighting

Vector: TypeAlias = NDArray[np.float32]
Wide: TypeAlias = NDArray[np.float64]
State: TypeAlias = dict[str, Vector]


@dataclass(frozen=True, eq=False)
class Contribution:
    """What a tour brings home: its model, and how many samples that has seen since the last merge."""

    vector: Vector
    weight: float


@dataclass(frozen=True, eq=False)
class MergeContext:
    """What a merge knows besides the models.

    devices: N, all devices that the job has had. returned: what the objective returns, summed over all visits since
    the last merge, by name. before: N at the last merge. gamma: where in a model the numbers of a fusion stand.
    """

    devices: int
    objective: Objective
    returned: Mapping[str, Vector] = field(default_factory=dict)
    before: int | None = None
    gamma: slice | None = None

    @property
    def grown(self) -> float:
        """N at the last merge / N now: the factor for a mean over all devices when newcomers contribute 0."""
        return self.before / self.devices if self.before else 1.0


def weighting_of(aggregator: Aggregator) -> Weighting:
    """How an aggregator weighs models: edge servers, and the mean between two merges, do as it does."""
    weighting: Weighting = getattr(aggregator, "weighting", "samples")
    return weighting


def with_weight(contributions: Sequence[Contribution], weighting: Weighting) -> list[Contribution]:
    """Those that have a say: by samples, a tour that saw none has none; uniformly, devices need not tell."""
    return [each for each in contributions if weighting == "uniform" or each.weight > 0]


def mean_of(voices: Sequence[Contribution], weighting: Weighting) -> Wide:
    """The mean model, in float64, summed in the order of the contributions: plan order."""
    weights = [1.0 if weighting == "uniform" else each.weight for each in voices]
    return wide_mean([each.vector for each in voices], weights)


def stepped(
    rule: Callable[[Wide, Wide, dict[str, Wide]], tuple[Wide, dict[str, Wide]]],
    mean: Wide,
    previous: Vector,
    kept: Mapping[str, NDArray[np.floating]],
) -> tuple[Vector, State]:
    """The next model and state by a rule for (mean, w, state) in float64: number by number, so block by block."""
    model = np.empty(len(previous), np.float32)
    state = {name: np.empty(len(previous), np.float32) for name in kept}
    for block in blocks(len(previous)):
        before = {name: vector[block].astype(np.float64) for name, vector in kept.items()}
        model[block], after = rule(mean[block], previous[block].astype(np.float64), before)
        for name, numbers in after.items():
            state[name][block] = numbers
    return model, state
