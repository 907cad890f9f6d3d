"""VISIT's client sets: the literal greedy of Algorithm 1, under a reachability map.

Chang, Chiu, Sheu: "VISIT: Virtual-Targeted Sequential Training with Hierarchical Federated Learning on Non-IID Data".
For each of L sets: a random remaining device, then k - 1 times the remaining device j that maximises
iota(mean(v of set + j), v^target), with iota, the cosine similarity, and v^target = (1, ..., 1). Ties go to the lowest
number.

The paper lets every edge server reach every device. Here a set belongs to a site and draws only from devices that
reach it; `reservations` keeps a promise for every place that is still to be filled. Where all devices reach all sites,
the greedy is the paper's. It looks at all N devices for each of L·k places; `visit_fast` is for fleets too large for
that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.reservations import Reservations, deal, share_sets
from hierarchy.arranging.visit_fast import fast_sets
from hierarchy.arranging.visit_greedy import LiteralSearch, gather
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts import VisitArranger

MOST_WORK = 100_000_000
"""As many places x devices x classes as the literal greedy does in about a second."""


def visit_sets(
    settings: VisitArranger, sets: int, signatures: NDArray[np.float64], reach: NDArray[np.bool_], seed: int
) -> list[tuple[int, tuple[int, ...]]]:
    """`sets` sets as (site, devices in order of addition), by column and row number of `reach`."""
    reservations = Reservations(reach)
    sites = share_sets(reservations, reach.sum(axis=0), sets, generator(seed, "sites"))
    sizes = [1 + more for more in deal(reservations, sites, settings.size - 1)]
    work = sum(sizes) * (signatures.size + reach.size)
    if settings.search == "fast" or (settings.search == "auto" and work > MOST_WORK):
        found = fast_sets(signatures, reach, np.array(sites, np.int64), np.array(sizes, np.int64), seed)
        return list(zip(sites, found, strict=True))
    search, starts = LiteralSearch(signatures), generator(seed, "starts")
    return [
        (site, tuple(gather(search, reservations, site, size, starts))) for site, size in zip(sites, sizes, strict=True)
    ]
