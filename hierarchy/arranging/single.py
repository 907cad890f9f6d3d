"""FedAvg's arrangement: every chosen device is a tour of its own.

McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized Data", with max(1, floor(C·K)).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.pools import Plan, place_alone
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts import SingleArranger


def single_sets(settings: SingleArranger, reach: NDArray[np.bool_], seed: int) -> Plan:
    """The sets, in the order of the devices."""
    return place_alone(chosen(settings.fraction, np.flatnonzero(reach.any(axis=1)), seed), reach)


def chosen(fraction: float, devices: NDArray[np.int64], seed: int) -> list[int]:
    """A random share of the devices, in order; all of them, without a draw, when the fraction is 1."""
    # 0.29 * 100 is 28.999999999999996: what a person calls 29 must not become 28.
    count = max(1, math.floor(fraction * len(devices) + 1e-9))
    if count >= len(devices):
        return [int(device) for device in devices]
    return sorted(int(device) for device in generator(seed, "chosen").choice(devices, count, replace=False))
