"""Reservations of devices for sites: which device may be taken where, so that no pick empties a later set.

A set belongs to a site and draws only from devices that reach it. Reservations keep a promise for every place that is
still open; if all devices reach all sites, every remaining device is a candidate. Devices that reach the same sites are
of one kind. A promise is of one device of a kind, so its cost depends on the number of kinds.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

WORD = 8
"""Bytes of the largest integer that sorts fast."""


class Reservations:
    """How many devices of each kind are promised to which site: a flow, so that every promise can be kept."""

    def __init__(self, reach: Mask) -> None:
        kinds, self._kind = _kinds(reach)
        self._reached: Mask = np.ascontiguousarray(kinds.T)
        self._free = np.bincount(self._kind, minlength=len(kinds))
        self._promised = np.zeros(self._reached.shape, np.int64)
        self._lent: Mask = np.zeros(self._reached.shape, bool)
        self._left = np.ones(len(reach), bool)
        order = np.argsort(self._kind, kind="stable")
        self._members = np.split(order, np.cumsum(self._free)[:-1])
        """The devices of each kind, lowest number first, including taken ones."""
        self._last_kind: dict[int, int] = {}

    def claim(self, site: int, places: int = 1) -> int:
        """Promise the site up to `places` more free devices, moving promises between sites if that makes room.

        Returns how many it got; a site that gets fewer than it asked for can never get more.
        """
        # With single places, a site usually gets the next one from the kind of its last one.
        last_kind = self._last_kind.get(site)
        if places == 1 and last_kind is not None and self._free[last_kind]:
            self._free[last_kind] -= 1
            self._promise(site, last_kind, 1)
            return 1
        got = 0
        while got < places and (more := self._claim_along_one_path(site, places - got)):
            got += more
        return got

    def candidates(self, site: int) -> Rows:
        """Return the devices that the site may take without breaking a promise to another, lowest number first."""
        kinds = np.flatnonzero(self._safe(site))
        if len(kinds) == 1:  # avoids a scan of all devices for the few of one site
            rows = self._members[int(kinds[0])]
            return rows[self._left[rows]]
        safe = np.zeros(len(self._free), bool)
        safe[kinds] = True
        return np.flatnonzero(safe[self._kind] & self._left)

    def _safe(self, site: int) -> Mask:
        """Return the kinds that the site may take from now."""
        replaceable = (self._free > 0) | self._lent[site]
        while not replaceable[self._reached[site]].all():
            refillable = (self._reached & replaceable).any(axis=1)
            wider: Mask = replaceable | self._lent[refillable].any(axis=0)
            if np.array_equal(wider, replaceable):
                break
            replaceable = wider
        safe: Mask = replaceable & self._reached[site]
        return safe

    def take(self, site: int, device: int) -> None:
        """Keep one promise to the site with this candidate; a site that was promised it gets another."""
        kind = int(self._kind[device])
        self._left[device] = False
        if self._lent[site, kind]:
            self._promise(site, kind, -1)
            return
        kept = int(np.argmax(self._lent[site]))
        self._promise(site, kept, -1)
        self._free[kept] += 1
        if self._free[kind]:
            self._free[kind] -= 1
            return
        for other in np.flatnonzero(self._lent[:, kind]).tolist():
            self._promise(other, kind, -1)
            if self.claim(other):
                return
            self._promise(other, kind, 1)

    def promised(self, site: int) -> list[int]:
        """Return the devices promised to a site, lowest number first; no device is in two sites' lists."""
        mine: list[int] = []
        for kind in np.flatnonzero(self._lent[site]).tolist():
            begin = int(self._promised[:site, kind].sum())
            left = np.flatnonzero(self._left & (self._kind == kind))
            mine += left[begin : begin + int(self._promised[site, kind])].tolist()
        return sorted(mine)

    def split(self, draw: np.random.Generator) -> list[Rows]:
        """Return all remaining devices in random order, each at one site: its promised ones, and some free ones.

        A kind's free devices go to the sites that it reaches, in proportion to all devices promised to these sites.
        """
        order = draw.permutation(np.flatnonzero(self._left))
        order = order[np.argsort(self._kind[order], kind="stable")]
        weights = self._promised.sum(axis=1, keepdims=True) * self._reached
        # Whole shares of a kind's free devices, by rounding down their running sum.
        shares = np.cumsum(weights, axis=0) * self._free // np.maximum(1, weights.sum(axis=0))
        shares = np.diff(shares, axis=0, prepend=0) + self._promised
        unused = np.bincount(self._kind[order], minlength=len(self._free)) - shares.sum(axis=0)
        no_site = len(shares)
        owner = np.repeat(
            np.tile(np.arange(no_site + 1), len(self._free)), np.concatenate([shares, unused[None]]).T.ravel()
        )
        back = draw.permutation(len(order))
        order, owner = order[back], owner[back]
        return [order[owner == site] for site in range(no_site)]

    def _promise(self, site: int, kinds: int | Rows, amount: int | Rows) -> None:
        """Change the number of devices of some kinds that are promised to a site."""
        self._promised[site, kinds] += amount
        self._lent[site, kinds] = self._promised[site, kinds] > 0

    def _claim_along_one_path(self, site: int, most: int) -> int:
        """Add up to `most` promises along the shortest path from free devices, over sites that pass theirs on."""
        asker: dict[int, int] = {site: site}
        queue = [site]
        for here in queue:
            if (self._reached[here] & (self._free > 0)).any():
                return self._shift(here, asker, most)
            for other in np.flatnonzero((self._lent & self._reached[here]).any(axis=1)).tolist():
                if other not in asker:
                    asker[other] = here
                    queue.append(other)
        return 0

    def _shift(self, here: int, asker: dict[int, int], most: int) -> int:
        """Give free devices to site `here`, which passes as many on to the site that asked, until the path ends."""
        path = [here]
        while (site := asker[path[-1]]) != path[-1]:
            path.append(site)
        lots = [np.flatnonzero(self._reached[here] & (self._free > 0))]
        amount = min(most, int(self._free[lots[0]].sum()))
        for giver, receiver in pairwise(path):
            lots.append(np.flatnonzero(self._lent[giver] & self._reached[receiver]))
            amount = min(amount, int(self._promised[giver, lots[-1]].sum()))
        given = _first(self._free[lots[0]], amount)
        self._free[lots[0]] -= given
        self._promise(here, lots[0], given)
        for (giver, receiver), kinds in zip(pairwise(path), lots[1:], strict=True):
            given = _first(self._promised[giver, kinds], amount)
            self._promise(giver, kinds, -given)
            self._promise(receiver, kinds, given)
        self._last_kind[here] = int(lots[0][-1])
        return amount


def share_sets(
    reservations: Reservations, counts: NDArray[np.int64], sets: int, draw: np.random.Generator
) -> list[int]:
    """Return the site of each set: one each first, then to the largest count / (its sets + 1); claims a device per set.

    With fewer sets than sites the sites are drawn, weighted by devices, so that in time every site is drawn.
    """
    first = [site for site in np.argsort(-counts, kind="stable").tolist() if counts[site]]
    if sets < len(first):
        first = draw.choice(first, len(first), replace=False, p=counts[first] / counts.sum()).tolist()
    owners: list[int] = []
    for site in first:
        if len(owners) < sets and reservations.claim(site):
            owners.append(site)
    held = Counter(owners)
    queue = [(-counts[site] / 2, site) for site in held]
    heapq.heapify(queue)
    while queue and len(owners) < sets:
        site = heapq.heappop(queue)[1]
        if reservations.claim(site):
            owners.append(site)
            held[site] += 1
            heapq.heappush(queue, (-counts[site] / (held[site] + 1), site))
    return owners


def deal(reservations: Reservations, sites: Sequence[int], most: int) -> list[int]:
    """Return how many devices each set can claim at its site: one each in turn, up to `most`, as level as possible.

    A site that cannot claim now never can: the groups of places that can be filled together form a matroid.
    """
    counts = np.zeros(len(sites), np.int64)
    numbers = {site: np.flatnonzero(np.equal(sites, site)) for site in dict.fromkeys(sites)}
    for _ in range(most):
        if not numbers:
            break
        for site, mine in list(numbers.items()):
            got = reservations.claim(site, len(mine))
            counts[mine[:got]] += 1
            if got < len(mine):
                del numbers[site]
    return [int(count) for count in counts]


def _kinds(reach: Mask) -> tuple[Mask, Rows]:
    """Return the distinct rows of a reachability table, and the kind of each device."""
    if len(reach) == 0 or bool((reach == reach[0]).all()):
        return reach[:1], np.zeros(len(reach), np.int64)
    packed = np.ascontiguousarray(np.packbits(reach, axis=1))
    width = packed.shape[1]
    if width <= WORD:  # as integers they sort in the same order, and much faster
        packed = np.pad(packed, [(0, 0), (0, WORD - width)])
        keys: NDArray[np.generic] = packed.view(">u8")[:, 0].astype(np.uint64)
    else:
        keys = packed.view(np.dtype((np.void, width)))[:, 0]
    _, index, kind = np.unique(keys, return_index=True, return_inverse=True)
    return reach[index], kind.astype(np.int64)


def _first(stock: NDArray[np.int64], amount: int) -> NDArray[np.int64]:
    """Return how much each lot gives when `amount` is taken from the first ones."""
    given: NDArray[np.int64] = np.clip(amount - (np.cumsum(stock) - stock), 0, stock)
    return given
