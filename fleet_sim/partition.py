"""Splitting labelled samples over devices, so that each sees its own part of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray


def dirichlet(labels: NDArray[np.int64], devices: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """The sample numbers of each device: every label is dealt out by shares drawn from Dir(alpha).

    A small alpha gives each device few labels, a large one gives all devices the same mix. Every sample is given once;
    a device may be left with none.
    """
    draw = generator(seed, "dirichlet", devices)
    dealt: list[list[NDArray[np.int64]]] = [[] for _ in range(devices)]
    for label in np.unique(labels):
        mine = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(draw.dirichlet(np.full(devices, alpha))) * len(mine)).astype(np.int64)
        for pile, part in zip(dealt, np.split(mine, ends[:-1]), strict=True):
            pile.append(part)
    return [np.sort(np.concatenate(pile)) for pile in dealt]
