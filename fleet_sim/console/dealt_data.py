"""What each device was dealt of a data set, in the terms of its task: classes, labels, ranges or clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fleet_sim.datasets.strata import RANGED, brief, groups_of, quantity_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from fleet_sim.datasets import DataSet

WORDS = {"classification": "classes", "multilabel": "labels", "tokens": "clusters", "reconstruction": "clusters"}
"""What a device has few or many of; strata of quantities are ranges."""


@dataclass(frozen=True, eq=False)
class DealtData:
    """Of each device: its samples, how many of each group it has, and a few words on its values.

    A sample with several labels counts for each of them. heading: what the words are about; without it there are none.
    """

    samples: NDArray[np.int64]
    counts: NDArray[np.int64]
    names: tuple[str, ...]
    word: str
    heading: str = ""
    values: tuple[str, ...] = ()


def dealt_data(data: DataSet, parts: list[NDArray[np.int64]]) -> DealtData:
    """What the parts of a split hold."""
    samples = np.array([len(part) for part in parts], np.int64)
    word = WORDS.get(data.kind, "ranges")
    if data.kind == "multilabel":
        counts = np.array([(data.y_train[part] > 0.5).sum(axis=0) for part in parts], np.int64)
        return DealtData(samples, counts, data.classes, word)
    groups = groups_of(data)
    each = [np.bincount(groups.of_sample[part], minlength=len(groups.names)) for part in parts]
    heading, say = _words(data)
    values = tuple(say(part) if len(part) else "" for part in parts) if heading else ()
    return DealtData(samples, np.array(each, np.int64), groups.names, word, heading, values)


def _words(data: DataSet) -> tuple[str, Callable[[NDArray[np.int64]], str]]:
    """What is said of a device's values besides counts, and how."""
    if data.kind in RANGED:
        found = quantity_of(data)
        name = data.names[0] if data.names else "target"
        return (name if data.kind == "regression" else f"{name}, mean to come"), lambda part: _range(found[part])
    if data.kind == "reconstruction":
        return "values", lambda part: f"{data.x_train[part].mean():.3g} ± {data.x_train[part].std():.3g}"
    if data.kind == "tokens":
        return "tokens known", lambda part: str(len(np.unique(data.x_train[part])))
    return "", str


def _range(values: NDArray[np.float64]) -> str:
    low, high, middle = (brief(float(each)) for each in (values.min(), values.max(), np.median(values)))
    return f"{low} to {high}, median {middle}"
