"""VISIT's client sets: the literal greedy of Algorithm 1, under a reachability map.

Chang, Chiu, Sheu: "VISIT: Virtual-Targeted Sequential Training with Hierarchical Federated Learning on Non-IID Data".
For each of L sets: a random remaining device, then k - 1 times the remaining device j that maximises
iota(mean(v of set + j), v^target), v^target = (1, ..., 1). Ties go to the lowest number.

The paper lets every edge server reach every device. Here a set belongs to a site and draws only from devices that
reach it. Seats keep a promise for every place that is still to be filled, so that no pick empties a later set;
where all devices reach all sites, every remaining device is a candidate and the greedy is the paper's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sojourn.parts import VisitArranger

    Mask = NDArray[np.bool_]
    Signatures = NDArray[np.float64]

FREE, TAKEN = -1, -2
TIE = 1e-12
"""Similarities this close are equal: the order in which a machine sums must not decide."""


class Seats:
    """Which devices are promised to which site: a matching, so that what is promised can always be kept."""

    def __init__(self, reach: Mask) -> None:
        self._reached: Mask = np.ascontiguousarray(reach.T)
        self._home = np.full(len(reach), FREE)

    def claim(self, site: int) -> bool:
        """Promise the site one more free device, moving promises between sites where that makes room."""
        asker: dict[int, tuple[int, int] | None] = {site: None}
        queue = [site]
        for here in queue:
            reaching = self._reached[here]
            free = reaching & (self._home == FREE)
            if free.any():
                self._shift(int(np.argmax(free)), here, asker)
                return True
            for other in np.unique(self._home[reaching & (self._home >= 0)]).tolist():
                if other not in asker:
                    asker[other] = (int(np.argmax(reaching & (self._home == other))), here)
                    queue.append(other)
        return False

    def candidates(self, site: int) -> Mask:
        """The devices that the site may take now without breaking a promise to another."""
        replaceable = (self._home == FREE) | (self._home == site)
        while True:
            refillable = (self._reached & replaceable).any(axis=1)
            # The two last entries are what FREE and TAKEN point at.
            wider: Mask = replaceable | np.append(refillable, [False, False])[self._home]
            if np.array_equal(wider, replaceable):
                break
            replaceable = wider
        safe: Mask = replaceable & self._reached[site]
        return safe

    def take(self, site: int, device: int) -> None:
        """Keep one promise to the site with this candidate; whoever was promised it gets another."""
        left = int(self._home[device])
        if left != site:
            self._home[np.argmax(self._home == site)] = FREE
        self._home[device] = TAKEN
        if left not in (site, FREE):
            self.claim(left)

    def promised(self, site: int) -> list[int]:
        """The devices promised to a site, lowest number first."""
        return [int(device) for device in np.flatnonzero(self._home == site)]

    def _shift(self, device: int, here: int, asker: dict[int, tuple[int, int] | None]) -> None:
        """Give `device` to `here`, whose promised device goes to the site that asked for it, and so on."""
        self._home[device] = here
        while (step := asker[here]) is not None:
            device, here = step
            self._home[device] = here


def visit_sets(
    settings: VisitArranger, signatures: Signatures, reach: Mask, seed: int
) -> list[tuple[int, tuple[int, ...]]]:
    """The sets as (site, devices in tour order), by column and row number of `reach`."""
    seats = Seats(reach)
    sites = share_sets(seats, reach.sum(axis=0), settings.sets, generator(seed, "sites"))
    more = deal(seats, sites, settings.size - 1)
    starts = generator(seed, "starts")
    plan = []
    for number, site in enumerate(sites):
        members = _gather(signatures, seats, site, 1 + more[number], starts)
        if settings.order == "shuffled":
            members = generator(seed, "order", number).permutation(members).tolist()
        plan.append((site, tuple(members) * settings.passes))
    return plan


def share_sets(seats: Seats, counts: NDArray[np.int64], sets: int, draw: np.random.Generator) -> list[int]:
    """The site of each set: one each first, then to the largest count / (sets it has + 1); claims one device a set.

    With fewer sets than sites the sites are drawn, weighted by devices, so that in time every site has its turn.
    """
    held = {site: 0 for site in np.argsort(-counts, kind="stable").tolist() if counts[site]}
    first = list(held)
    if sets < len(first):
        first = draw.choice(first, len(first), replace=False, p=counts[first] / counts.sum()).tolist()
    owners: list[int] = []
    while held and len(owners) < sets:
        site = first.pop(0) if first else min(held, key=lambda s: (-counts[s] / (held[s] + 1), s))
        if seats.claim(site):
            owners.append(site)
            held[site] += 1
        else:
            del held[site]
    return owners


def deal(seats: Seats, sites: Sequence[int], most: int) -> list[int]:
    """How many devices each set can claim at its site: one for all in turn, up to `most`, as level as can be.

    A site that cannot claim now never can: the groups of places that can be filled together form a matroid.
    """
    counts = [0] * len(sites)
    open_sites = set(sites)
    for _ in range(most):
        for number, site in enumerate(sites):
            if site in open_sites:
                if seats.claim(site):
                    counts[number] += 1
                else:
                    open_sites.remove(site)
        if not open_sites:
            break
    return counts


def _gather(signatures: Signatures, seats: Seats, site: int, size: int, starts: np.random.Generator) -> list[int]:
    """One set in order of addition (Algorithm 1, lines 13 to 20)."""
    members = [int(starts.choice(np.flatnonzero(seats.candidates(site))))]
    seats.take(site, members[0])
    total = signatures[members[0]].copy()
    while len(members) < size:
        newcomer = _closest(signatures, total, seats.candidates(site))
        seats.take(site, newcomer)
        members.append(newcomer)
        total += signatures[newcomer]
    return members


def _closest(signatures: Signatures, total: NDArray[np.float64], allowed: Mask) -> int:
    """The allowed device whose signature brings the set's sum closest to the virtual target's direction.

    The cosine of a sum is that of the mean, and the target's length is the same for all: both are left out.
    """
    sums = signatures + total
    lengths = np.sqrt(np.einsum("nc,nc->n", sums, sums))
    scores = np.divide(sums.sum(axis=1), lengths, out=np.zeros(len(sums)), where=lengths > 0)
    scores[~allowed] = -np.inf
    return int(np.argmax(scores >= scores.max() - TIE))
