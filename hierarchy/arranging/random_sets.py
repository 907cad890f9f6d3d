"""Random sets: of a given size, or all devices in equal parts (FedGSP's NaiveGSP, FedSeq's phi_rand with a number)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.pools import level
from sojourn.randomness import generator

if TYPE_CHECKING:
    from sojourn.parts import RandomArranger


def random_groups(settings: RandomArranger, devices: int, sets: int, seed: int) -> list[list[int]]:
    """The groups of the numbers below `devices`, disjoint; too few devices make groups of level size."""
    order = generator(seed, "random").permutation(devices)
    return [part.tolist() for part in np.split(order, np.cumsum(level(devices, sets, settings.size)))[:-1]]
