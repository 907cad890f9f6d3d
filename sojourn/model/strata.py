"""Strata stand for classes where a task has none: into which group a sample falls, the same on every machine.

The numbers of a sample by which that is decided depend on the task: a regression's targets; the mean of each channel
over a forecast's window; of a reconstruction the means of eight equal parts of the sample; of tokens the shares of
those in eight equal ranges of the vocabulary. Which groups there are was found in the job's exemplars
(`sojourn.protocol.task.Strata`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.spec import InputSpec
    from sojourn.protocol.task import Strata, TaskSpec

    Numbers = NDArray[np.float64]

PARTS = 8
"""Of a sample, or of a vocabulary."""
BLOCK = 1024
"""Samples at a time: a data set as float64 would take twice its memory."""


def members(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.bool_]:
    """For each sample and each stratum, whether it is in it; one with several labels is in several."""
    count = task.strata.count
    if task.kind == "multilabel":
        return np.asarray(np.asarray(y, np.float32) > 0.5)
    return np.asarray(strata_of(task, x, y)[:, np.newaxis] == np.arange(count))


def strata_of(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.int64]:
    """The stratum of each sample; of one with several labels the first, and 0 for one with none."""
    if task.kind == "classification":
        return np.asarray(y, np.int64)
    if task.kind == "multilabel":
        return np.asarray(members(task, x, y).argmax(axis=1), np.int64)
    blocks = [slice(at, at + BLOCK) for at in range(0, len(x), BLOCK)]
    found = [places(task.strata, numbers(task, x[rows], y[rows])) for rows in blocks]
    return np.concatenate([np.zeros(0, np.int64), *found])


def counts_by_stratum(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> NDArray[np.int64]:
    """How many samples there are in each stratum."""
    if task.kind == "multilabel":
        return np.asarray(members(task, x, y).sum(axis=0), np.int64)
    return np.bincount(strata_of(task, x, y), minlength=task.strata.count)


def numbers(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic]) -> Numbers:
    """The numbers by which samples fall into strata, a row for each."""
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
    """How many numbers of a sample there are by which it falls into a stratum; 0 where it has classes."""
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
    """The stratum of each row of numbers."""
    if strata.edges:
        return np.searchsorted(np.array(strata.edges), found[:, 0], side="left").astype(np.int64)
    if not strata.centres:
        return np.zeros(len(found), np.int64)
    scale = np.array(strata.scale or (1.0,))
    rows, centres = found / scale, np.array(strata.centres) / scale
    apart = np.square(rows[:, np.newaxis] - centres[np.newaxis]).sum(axis=2)
    return np.asarray(apart.argmin(axis=1), np.int64)
