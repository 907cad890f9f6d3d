"""The groups of a data set's samples by which splits tell devices apart: classes, or strata where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.jobs.stratifying import strata_in
from sojourn.errors import DataError
from sojourn.model.strata import numbers, strata_of
from sojourn.protocol.task import Strata, Target, TaskSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet_sim.datasets.data_set import DataSet

STRATA = 10
"""Into so many groups training samples without classes fall."""
RANGED = ("regression", "forecast")
"""Kinds whose targets are quantities, which have ranges."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each training sample is in, and what the groups are."""

    of_sample: NDArray[np.int64]
    names: tuple[str, ...]


def groups_of(data: DataSet) -> Groups:
    """The classes of a set, each set of labels that occurs, or its strata."""
    if data.kind == "classification":
        return Groups(data.y_train.astype(np.int64), data.classes)
    if data.kind == "multilabel":
        kinds, which = np.unique(data.y_train > 0.5, axis=0, return_inverse=True)
        names = ["+".join(name for name, there in zip(data.classes, row, strict=True) if there) for row in kinds]
        return Groups(which.reshape(-1).astype(np.int64), tuple(name or "none" for name in names))
    task = task_of(data)
    strata = strata_in(task, data.x_train, data.y_train, STRATA, 0)
    found = strata_of(msgspec.structs.replace(task, strata=strata), data.x_train, data.y_train)
    return Groups(found, _names(strata))


def quantity_of(data: DataSet) -> NDArray[np.float64]:
    """The one quantity by whose range samples are told apart: a target, of several the first; a window's mean."""
    if data.kind not in RANGED:
        raise DataError(
            f"{data.name} has no quantity as its target but is for {data.kind}: a split by range needs one; split it "
            "by dirichlet or shards, or by user or domain where these are known"
        )
    return np.asarray(numbers(task_of(data), data.x_train, data.y_train)[:, 0])


def task_of(data: DataSet) -> TaskSpec:
    """What is learnt of a set, as far as strata need it."""
    if data.kind == "reconstruction":
        return TaskSpec(data.kind, data.x_train.shape[1:], None, Strata(STRATA))
    shape = data.y_train.shape[1:]
    output = (*shape, len(data.classes)) if data.kind == "tokens" else shape
    return TaskSpec(
        data.kind, output, Target(shape, "int64" if data.kind == "tokens" else "float32"), Strata(STRATA), data.names
    )


def brief(value: float) -> str:
    """A value in few digits: 0.00123, 12.3, 1,234."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.3g}"


def _names(strata: Strata) -> tuple[str, ...]:
    """What each stratum is, for people."""
    if not strata.edges:
        return tuple(f"cluster {at}" for at in range(strata.count))
    ends = [brief(edge) for edge in strata.edges]
    between = [f"{low} to {high}" for low, high in pairwise(ends)]
    return (f"up to {ends[0]}", *between, f"above {ends[-1]}")
