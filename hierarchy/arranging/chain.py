"""Sets that are sites: all devices in one row, site after site (`chain`), or a share of each site's own (`site`).

A device that reaches several sites belongs to one of them, as evenly as can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.pools import Plan, assign_sites
from hierarchy.arranging.single import chosen
from sojourn.randomness import derive, generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts import ChainArranger, SiteArranger


def chain_sets(settings: ChainArranger, reach: NDArray[np.bool_], seed: int) -> Plan:
    """Every device once: a set for each site, in the order of the sites."""
    named = _by_site(reach)
    if settings.order == "name":
        return [(site, tuple(devices.tolist())) for site, devices in named]
    return [(site, tuple(generator(seed, "chain", site).permutation(devices).tolist())) for site, devices in named]


def site_sets(settings: SiteArranger, reach: NDArray[np.bool_], seed: int) -> Plan:
    """For each site a random share of its devices, max(1, floor(fraction · devices)), in the order of the devices."""
    return [
        (site, tuple(chosen(settings.fraction, devices, derive(seed, "site", site))))
        for site, devices in _by_site(reach)
    ]


def _by_site(reach: NDArray[np.bool_]) -> list[tuple[int, NDArray[np.int64]]]:
    """The devices that are each site's own, of the sites that have any."""
    homes = assign_sites(reach)
    return [(site, np.flatnonzero(homes == site)) for site in range(reach.shape[1]) if (homes == site).any()]
