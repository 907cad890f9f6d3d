"""Arrangers without measurements: single devices, random sets, whole sites, and a chain of sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hierarchy.arranging.candidates import Memo
from hierarchy.arranging.pools import Plan, assign_sites, level, place_alone
from sojourn.parts import ChainArranger, RandomArranger, SingleArranger, SiteArranger
from sojourn.randomness import derive, generator

# FedAvg's arrangement: every chosen device is a separate tour.
#
# McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized Data", with max(1, floor(C·K)).


def single_sets(settings: SingleArranger, reach: NDArray[np.bool_], seed: int) -> Plan:
    """Return the sets, in the order of the devices."""
    return place_alone(chosen(settings.fraction, np.flatnonzero(reach.any(axis=1)), seed), reach)


def chosen(fraction: float, devices: NDArray[np.int64], seed: int) -> list[int]:
    """Return a random share of the devices, in order; all of them, without a draw, if the fraction is 1."""
    # 0.29 * 100 is 28.999999999999996: 29 % must not become 28.
    count = max(1, math.floor(fraction * len(devices) + 1e-9))
    if count >= len(devices):
        return [int(device) for device in devices]
    return sorted(int(device) for device in generator(seed, "chosen").choice(devices, count, replace=False))


def random_groups(
    settings: RandomArranger, devices: int, sets: int, seed: int, turns: Sequence[int] = ()
) -> list[list[int]]:
    """Return disjoint groups of the numbers below `devices`; too few devices make groups of level size.

    turns: how many each device has had; devices that are due come first, and are dealt over the groups.
    """
    order, sizes = generator(seed, "random").permutation(devices), level(devices, sets, settings.size)
    if settings.turns and turns:
        had = np.asarray(turns)[order]
        going = np.concatenate([order[had < had.max()], order[had == had.max()]])[: sum(sizes)]
        order = generator(seed, "dealt").permutation(going)
    return [part.tolist() for part in np.split(order, np.cumsum(sizes))[:-1]]


def after_turns(memo: Memo, planned: Iterable[str]) -> Memo:
    """Return the memo of turns: by device, how many it has had.

    A device that was offline, or is new, does not catch up on past laps; it gets its turn in the current one.
    """
    top = max((count for count, *_ in memo.values()), default=0)
    return {**memo, **{device: (max(memo.get(device, (0,))[0], top - 1) + 1,) for device in planned}}


# Sets that are sites: all devices in one row, site after site (`chain`), or a share of the devices of each site
# (`site`).
#
# A device that reaches several sites is assigned to one of them, as evenly as possible.


def chain_sets(settings: ChainArranger, reach: NDArray[np.bool_], seed: int) -> Plan:
    """Return a set for each site, in the order of the sites, that together have every device once."""
    named = _by_site(reach)
    if settings.order == "name":
        return [(site, tuple(devices.tolist())) for site, devices in named]
    return [(site, tuple(generator(seed, "chain", site).permutation(devices).tolist())) for site, devices in named]


def site_sets(settings: SiteArranger, reach: NDArray[np.bool_], seed: int) -> Plan:
    """Return for each site a random share of its devices, max(1, floor(fraction · devices)), in device order."""
    return [
        (site, tuple(chosen(settings.fraction, devices, derive(seed, "site", site))))
        for site, devices in _by_site(reach)
    ]


def _by_site(reach: NDArray[np.bool_]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the devices assigned to each site, for the sites that have any."""
    homes = assign_sites(reach)
    return [(site, np.flatnonzero(homes == site)) for site in range(reach.shape[1]) if (homes == site).any()]
