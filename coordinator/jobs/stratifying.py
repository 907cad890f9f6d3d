"""Which strata a job has: found in its public samples, the same for the same seed.

One quantity falls into ranges that hold equally many samples; several numbers into clusters (k-means), each number in
its own deviations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.model.strata import numbers
from sojourn.protocol.task import Strata
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.task import TaskSpec

    Numbers = NDArray[np.float64]

PASSES = 50
MOST_LOOKED_AT = 20_000
"""Samples in which clusters are looked for; of more, so many from everywhere."""


def strata_in(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic], wanted: int, seed: int) -> Strata:
    """The strata of these samples: as many as wanted, or fewer where not so many differ."""
    rows = np.linspace(0, len(x) - 1, min(len(x), MOST_LOOKED_AT)).astype(np.int64)
    found = numbers(task, x[rows], y[rows])
    if found.shape[1] == 1:
        return _ranges(found[:, 0], wanted)
    scale = found.std(axis=0)
    scale = np.where(scale > 1e-9 * np.maximum(1.0, np.abs(found).max(axis=0)), scale, 1.0)
    centres = _clusters(found / scale, wanted, seed) * scale
    order = np.lexsort(centres.T[::-1])
    as_floats = (tuple(float(value) for value in centre) for centre in centres[order])
    return Strata(len(centres), centres=tuple(as_floats), scale=tuple(float(value) for value in scale))


def _ranges(values: Numbers, wanted: int) -> Strata:
    """Ranges that hold equally many; where many values are the same, there are fewer."""
    edges = np.unique(np.quantile(values, np.arange(1, wanted) / wanted))
    edges = edges[edges < values.max()]  # above the last edge there is something, too
    if not len(edges) and values.min() < values.max():  # nearly all are the largest
        edges = values[values < values.max()].max(keepdims=True)
    return Strata(len(edges) + 1, edges=tuple(float(edge) for edge in edges))


def _clusters(rows: Numbers, wanted: int, seed: int) -> Numbers:
    """The centres of k-means, started as k-means++ does; none is empty."""
    draw = generator(seed, "strata")
    centres = rows[[int(draw.integers(len(rows)))]]
    while len(centres) < wanted:
        nearest = _apart(rows, centres).min(axis=1)
        if nearest.sum() <= 0:  # there are no others that differ
            break
        centres = np.concatenate([centres, rows[[int(draw.choice(len(rows), p=nearest / nearest.sum()))]]])
    for _ in range(PASSES):
        which = _apart(rows, centres).argmin(axis=1)
        there = np.unique(which)
        moved = np.stack([rows[which == each].mean(axis=0) for each in there])
        if moved.shape == centres.shape and np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _apart(rows: Numbers, centres: Numbers) -> Numbers:
    return np.asarray(np.square(rows[:, np.newaxis] - centres[np.newaxis]).sum(axis=2))
