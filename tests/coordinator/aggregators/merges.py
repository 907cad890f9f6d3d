"""Rounds for tests of aggregators: random models, and inputs of a merge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregators.aggregating import Contribution, MergeContext
from sojourn.parts import Objective, Sgd
from sojourn.randomness import generator


def brought(*pairs: tuple[list[float] | NDArray[np.float32], float]) -> list[Contribution]:
    """Return contributions from pairs of (values, weight)."""
    return [Contribution(np.array(vector, np.float32), weight) for vector, weight in pairs]


def drawn(name: str, tours: int, size: int = 7, scale: float = 1.0) -> list[Contribution]:
    """Return random models with random weights."""
    draw = generator(3, name, tours)
    return [
        Contribution((scale * draw.standard_normal(size)).astype(np.float32), float(draw.integers(1, 50)))
        for _ in range(tours)
    ]


def about(objective: Objective | None = None, devices: int = 10, **returned: NDArray[np.float32]) -> MergeContext:
    """Return the further inputs of a merge."""
    return MergeContext(devices, objective or Sgd(), returned)


def plain_mean(contributions: list[Contribution], weighting: str = "samples") -> NDArray[np.float64]:
    """Return the mean in its plain form, without optimisation."""
    weights = [1.0 if weighting == "uniform" else each.weight for each in contributions]
    rows = np.array([each.vector for each in contributions], np.float64)
    return np.array([sum(w * x for w, x in zip(weights, row, strict=True)) / sum(weights) for row in rows.T])
