"""Strata: groups of samples that replace classes in tasks without classes, identical on every machine.

The stratum depends on a few numbers per sample: the targets of a regression; the mean of each channel over the window
of a forecast; for a reconstruction, the means of eight equal parts of the sample; for tokens, the shares of tokens in
eight equal ranges of the vocabulary. The strata are derived from the job's exemplars (`sojourn.protocol.task.Strata`).
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, TaskSpec

Numbers = NDArray[np.float64]

PARTS = 8
"""The number of parts of a sample, and of ranges of a vocabulary."""
BLOCK = 1024
"""Samples per block: a whole dataset as float64 would double its memory."""


def members(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return whether each sample is in each stratum; a multilabel sample may be in several."""
    count = task.strata.count
    if task.kind == "multilabel":
        return np.asarray(np.asarray(y, np.float32) > 0.5)
    return np.asarray(strata_of(task, x, y)[:, np.newaxis] == np.arange(count))


def strata_of(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the stratum of each sample; for a multilabel sample the first one, or 0 without labels."""
    if task.kind == "classification":
        return np.asarray(y, np.int64)
    if task.kind == "multilabel":
        return np.asarray(members(task, x, y).argmax(axis=1), np.int64)
    blocks = [slice(at, at + BLOCK) for at in range(0, len(x), BLOCK)]
    found = [places(task.strata, numbers(task, x[rows], y[rows])) for rows in blocks]
    return np.concatenate([np.zeros(0, np.int64), *found])


def counts_by_stratum(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.int64]:
    """Count the samples in each stratum."""
    if task.kind == "multilabel":
        return np.asarray(members(task, x, y).sum(axis=0), np.int64)
    return np.bincount(strata_of(task, x, y), minlength=task.strata.count)


def numbers(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> Numbers:
    """Return the numbers that determine the strata, a row for each sample."""
    match task.kind:
        case "reconstruction":
            flat = np.asarray(x, np.float64).reshape(len(x), -1)
            parts = np.array_split(np.arange(flat.shape[1]), min(PARTS, flat.shape[1]))
            return np.stack([flat[:, part].mean(axis=1) for part in parts], axis=1)
        case "tokens":
            ranges = np.asarray(x, np.int64).reshape(len(x), -1) * PARTS // task.output[-1]
            return np.stack([(ranges == part).mean(axis=1) for part in range(PARTS)], axis=1)
        case "forecast":
            series = np.asarray(y, np.float64).reshape(len(y), *task.output)
            return np.asarray(series.mean(axis=1).reshape(len(y), -1))
        case _:
            return np.asarray(y, np.float64).reshape(len(y), -1)


def width(task: TaskSpec, input: InputSpec) -> int:  # noqa: A002
    """Return how many numbers per sample determine its stratum; 0 for tasks with classes."""
    match task.kind:
        case "reconstruction":
            return min(PARTS, prod(input.shape))
        case "tokens":
            return PARTS
        case "forecast":
            return prod(task.output[1:])
        case "regression":
            return prod(task.output)
        case _:
            return 0


def places(strata: Strata, found: Numbers) -> NDArray[np.int64]:
    """Return the stratum of each row of numbers."""
    if strata.edges:
        return np.searchsorted(np.array(strata.edges), found[:, 0], side="left").astype(np.int64)
    if not strata.centres:
        return np.zeros(len(found), np.int64)
    scale = np.array(strata.scale or (1.0,))
    rows, centres = found / scale, np.array(strata.centres) / scale
    apart = np.square(rows[:, np.newaxis] - centres[np.newaxis]).sum(axis=2)
    return np.asarray(apart.argmin(axis=1), np.int64)
