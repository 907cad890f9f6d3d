"""VISIT's client sets: the greedy of Algorithm 1 with reachability, and a faster form for large fleets.

Chang, Chiu, Sheu: "VISIT: Virtual-Targeted Sequential Training with Hierarchical Federated Learning on Non-IID Data".
For each of L sets: a random remaining device, then k - 1 times the remaining device j that maximises iota(mean(v of
set + j), v^target), with iota, the cosine similarity, and v^target = (1, ..., 1). Ties go to the lowest number.

In the paper every edge server reaches every device. Here a set belongs to a site and draws only from devices that
reach it; `reservations` keeps a promise for every open place. If all devices reach all sites, the greedy is the
paper's. It scores all N devices for each of L·k places; `fast_sets` is for fleets too large for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from hierarchy.arranging.reservations import Reservations, deal, share_sets
from sojourn.parts import VisitArranger
from sojourn.randomness import generator

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
Table = NDArray[np.float64]

TIE = 1e-12
"""Similarities this close are equal: the summation order of a machine must not decide."""
SHORT = 1e-12
"""A squared length below this share of the longest signature's is rounding: such a sum has similarity 0."""


SPARSE = 4
"""If less than one device in this many is allowed, only those are scored; otherwise all, without copying the table."""


class LiteralSearch:
    """The search for the device that brings a set's sum closest to the target: every sum and its cosine.

    The cosine of a sum is that of the mean, and the target's length is a common factor: both are left out.
    """

    def __init__(self, signatures: Table) -> None:
        self.signatures = signatures

    def closest(self, total: Table, allowed: Rows, site: int) -> int:  # noqa: ARG002  # independent of the site
        """Return the lowest number of the best devices."""
        sums = self.signatures[allowed] + total
        lengths = np.sqrt(np.einsum("nc,nc->n", sums, sums))
        scores = np.divide(sums.sum(axis=1), lengths, out=np.zeros(len(sums)), where=lengths > 0)
        return _first_best(scores, allowed)


@dataclass(frozen=True, eq=False)
class _SiteTable:
    """Devices that were allowed at a site, in one table: they are scored for each of its places."""

    devices: Rows
    signatures: Table
    squares: Table
    sums: Table


class QuickSearch:
    """The same search by |t + v|^2 = |t|^2 + 2 t·v + |v|^2: one product over the fleet instead of all sums."""

    def __init__(self, signatures: Table) -> None:
        self.signatures = signatures
        squares = np.einsum("nc,nc->n", signatures, signatures)
        self._all_devices = _SiteTable(np.arange(len(signatures)), signatures, squares, signatures.sum(axis=1))
        self._least = SHORT * squares.max(initial=0.0) or 1.0
        self._sites: dict[int, _SiteTable] = {}
        self._marked = np.zeros(len(signatures), bool)

    def closest(self, total: Table, allowed: Rows, site: int) -> int:
        """Return the lowest number of the best devices."""
        if SPARSE * len(allowed) < len(self.signatures):
            table, allowed_there = self._at(site, allowed)
            scores = self._scores(total, table)[allowed_there]
        else:
            scores = self._scores(total, self._all_devices)[allowed]
        return _first_best(scores, allowed)

    def _at(self, site: int, allowed: Rows) -> tuple[_SiteTable, Mask]:
        """Return a table with the devices allowed at a site, and a mask of its allowed rows, whose number shrinks."""
        known = self._sites.get(site)
        if known is not None and len(known.devices) <= SPARSE * len(allowed):
            self._marked[allowed] = True
            rows: Mask = self._marked[known.devices]
            self._marked[allowed] = False
            if np.count_nonzero(rows) == len(allowed):
                return known, rows
        everything = self._all_devices
        table = _SiteTable(allowed, self.signatures[allowed], everything.squares[allowed], everything.sums[allowed])
        self._sites[site] = table
        return table, np.ones(len(allowed), bool)

    def _scores(self, total: Table, table: _SiteTable) -> Table:
        lengths = table.signatures @ (2 * total)
        lengths += table.squares
        lengths += total @ total
        np.sqrt(np.maximum(lengths, self._least, out=lengths), out=lengths)
        scores: Table = table.sums + total.sum()
        scores /= lengths
        return scores


def _first_best(scores: Table, rows: Rows) -> int:
    return int(rows[np.argmax(scores >= scores.max() - TIE)])


Search = LiteralSearch | QuickSearch


def gather(search: Search, reservations: Reservations, site: int, size: int, starts: np.random.Generator) -> list[int]:
    """Return one set in order of addition (Algorithm 1, lines 13 to 20)."""
    members = [int(starts.choice(reservations.candidates(site)))]
    reservations.take(site, members[0])
    total = search.signatures[members[0]].copy()
    while len(members) < size:
        newcomer = search.closest(total, reservations.candidates(site), site)
        reservations.take(site, newcomer)
        members.append(newcomer)
        total += search.signatures[newcomer]
    return members


# VISIT's greedy for large fleets: the same rule, with cheaper sums, in blocks if there are many open places.
#
# The literal greedy scores all N devices for each of L·k places, which is quadratic if L·k grows with N. Here, while
# more than `BLOCK_PLACES` places are open, the fleet is split at random into blocks with about that many open places
# each. Every block makes half of its sets by Algorithm 1, and the devices left over are pooled for the next split. So a
# place considers some thousands of devices, and the last sets, for which the greedy leaves the worst choice, are made
# once for the whole fleet and not once in each block. The last `BLOCK_PLACES` places, or all if there are fewer or the
# fleet is small (`LITERAL`), are filled by the literal greedy from all remaining devices: a fleet that needs no blocks
# gets the literal greedy's sets. The time is O(N·BLOCK_PLACES·C).
#
# If sites reach different devices, a block belongs to a site: for each split a device is offered to one of the sites
# that it reaches (`Reservations.split`), and to no other. Only the last places consider all devices that reach their
# site. The sets of each site and their sizes are given, so no set that could have had a device is empty.

BLOCK_PLACES = 4096
"""The open places of one block; up to this many, the whole fleet is one block."""
OFFER_FACTOR = 2
"""A split offers at most this many times as many devices for each open place as the whole fleet had at first."""
SINGLE_TIE = 1e-6
"""Similarities this close are equal in single precision."""
LITERAL = 100_000_000
"""Up to this many pairs of an open place and a device, all places are filled from all remaining devices."""
MAX_CONSIDERED = 131_072
"""Maximum devices that a place considers: the best of these is hardly worse than the best of more."""
BATCH_DEVICES = 65536
"""Devices of the blocks that are processed together, so that their data fits into the cache."""


@dataclass(frozen=True, eq=False)
class FleetBlock:
    """Devices in random order, the numbers of the sets to make of them, and the sets' sizes."""

    devices: Rows
    sets: Rows
    sizes: Rows


def fast_sets(signatures: Table, reach: Mask, sites: Rows, sizes: Rows, seed: int) -> list[tuple[int, ...]]:
    """Return the devices of each set, in order of addition; set i is at `sites[i]` and has `sizes[i]` places."""
    members: list[tuple[int, ...]] = [()] * len(sites)
    left, due = np.arange(len(reach)), np.arange(len(sites))
    richness = OFFER_FACTOR * len(left) / max(1, int(sizes.sum()))
    for cut in count():
        most = richness if cut else np.inf
        parts = _offers(reach[left], sites[due], sizes[due], most, generator(seed, "cut", cut))
        parts = [left[part] for part in parts]
        places = int(sizes[due].sum())
        if places <= BLOCK_PLACES or places * len(left) <= LITERAL:
            break
        blocks = [block for site, part in enumerate(parts) for block in _cut(part, due[sites[due] == site], sizes)]
        taken = np.zeros(len(reach), bool)
        for batch in _batches(blocks):
            for block, found in zip(batch, _grow(signatures, batch), strict=True):
                for number, size, row in zip(block.sets.tolist(), block.sizes.tolist(), found.tolist(), strict=False):
                    members[number] = tuple(row[:size])
                taken[found[found >= 0]] = True
        left = left[~taken[left]]
        due = np.array([number for number in due.tolist() if not members[number]], np.int64)
    left = np.sort(np.concatenate([left[:0], *parts]))
    search, reservations = QuickSearch(signatures[left]), _claimed(reach[left], sites[due], sizes[due])
    starts = generator(seed, "starts")
    for number in due.tolist():
        chosen = gather(search, reservations, int(sites[number]), int(sizes[number]), starts)
        members[number] = tuple(left[chosen].tolist())
    return members


def _offers(reach: Mask, sites: Rows, sizes: Rows, most: float, draw: np.random.Generator) -> list[Rows]:
    """Return the devices offered to each site, in random order: `most` for each open place, and never too few."""
    parts = _claimed(reach, sites, sizes).split(draw)
    offers = []
    for part, places in zip(parts, np.bincount(sites, sizes, reach.shape[1]).tolist(), strict=True):
        considered = MAX_CONSIDERED * max(1, places / BLOCK_PLACES)
        offered = max(places, min(len(part), most * places, considered)) if places else 0
        offers.append(part[: int(offered)])
    return offers


def _claimed(reach: Mask, sites: Rows, sizes: Rows) -> Reservations:
    """Return reservations that promise every site as many devices as its sets have places."""
    reservations = Reservations(reach)
    for site, places in enumerate(np.bincount(sites, sizes, reach.shape[1]).tolist()):
        reservations.claim(site, int(places))
    return reservations


def _cut(devices: Rows, sets: Rows, sizes: Rows) -> Iterator[FleetBlock]:
    """Split one site's devices into blocks with equal shares of the sets; each with the first half of its sets."""
    places = np.concatenate([[0], np.cumsum(sizes[sets])])
    blocks = min(len(sets), -(-int(places[-1]) // BLOCK_PLACES))
    bounds = np.arange(blocks + 1) * len(sets) // max(1, blocks)
    rest = np.arange(blocks + 1) * (len(devices) - places[-1]) // max(1, blocks)
    ends = places[bounds] + rest
    for begin, end, first, last in zip(bounds, bounds[1:], ends, ends[1:], strict=False):
        now = sets[begin : (begin + end + 1) // 2]
        yield FleetBlock(devices[first:last], now, sizes[now])


def _batches(blocks: Sequence[FleetBlock]) -> Iterator[list[FleetBlock]]:
    """Yield batches of blocks of about the same length, as many as may be processed together."""
    batch: list[FleetBlock] = []
    for block in sorted(blocks, key=lambda block: -len(block.devices)):
        if batch and (len(batch) + 1) * len(batch[0].devices) > BATCH_DEVICES:
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


class _BlockTable:
    """The remaining devices of the blocks of a batch: one row for each block, padded at its end.

    Single precision is enough to compare devices, and twice as fast. One product of (2 t, 1, |t|^2) with the columns
    (v, |v|^2, 1) gives |t + v|^2.
    """

    def __init__(self, signatures: Table, batch: Sequence[FleetBlock]) -> None:
        self.devices = np.full((len(batch), len(batch[0].devices)), -1)
        for row, block in zip(self.devices, batch, strict=True):
            row[: len(block.devices)] = block.devices
        picked = signatures[self.devices]
        squares = np.einsum("bnc,bnc->bn", picked, picked)
        # In units of the longest signature, so that no square overflows.
        longest = float(np.sqrt(squares.max())) or 1.0
        self.sums = (picked.sum(axis=2) / longest).astype(np.float32)
        self.sums[self.devices < 0] = -np.inf
        self.columns = np.ones((len(batch), signatures.shape[1] + 2, self.devices.shape[1]), np.float32)
        self.columns[:, :-2] = picked.transpose(0, 2, 1) / longest
        self.columns[:, -2] = squares / longest**2
        self._allocate()

    def first(self) -> Rows:
        """Return the place of the first remaining device of each block: a random one, since the order is random."""
        places: Rows = np.argmax(self.sums > -np.inf, axis=1)
        return places

    def closest(self, totals: NDArray[np.float32]) -> Rows:
        """Return the place of the device in each block that brings its set's sum closest to the target's direction."""
        squares = np.einsum("bc,bc->b", totals, totals)[:, None]
        asked = np.concatenate([2 * totals, np.ones_like(squares), squares], axis=1)
        lengths = np.matmul(asked[:, None], self.columns, out=self._lengths)[:, 0]
        np.sqrt(np.maximum(lengths, SHORT, out=lengths), out=lengths)
        scores = np.add(self.sums, totals.sum(axis=1)[:, None], out=self._scores)
        scores /= lengths
        places: Rows = np.argmax(scores >= scores.max(axis=1, keepdims=True) - SINGLE_TIE, axis=1)
        return places

    def compact(self) -> None:
        """Drop the taken devices, so that they are not scored again."""
        gone = self.sums == -np.inf
        order = np.argsort(gone, axis=1, kind="stable")[:, : int((~gone).sum(axis=1).max())]
        self.devices = np.take_along_axis(self.devices, order, axis=1)
        self.sums = np.take_along_axis(self.sums, order, axis=1)
        self.columns = np.take_along_axis(self.columns, order[:, None, :], axis=2)
        self._allocate()

    def _allocate(self) -> None:
        """Allocate the results of a step once: allocating them in every step costs more than the sums."""
        self._scores = np.empty_like(self.sums)
        self._lengths = np.empty((len(self.sums), 1, self.sums.shape[1]), np.float32)


def _grow(signatures: Table, batch: Sequence[FleetBlock]) -> Rows:
    """Return the sets of blocks that are processed together: devices by block, set and place."""
    table = _BlockTable(signatures, batch)
    sizes = np.zeros((len(batch), max(len(block.sets) for block in batch)), np.int64)
    for row, block in zip(sizes, batch, strict=True):
        row[: len(block.sets)] = block.sizes
    members = np.full((*sizes.shape, int(sizes.max())), -1)
    seen = table.sums.shape[1]
    for number, wanted in enumerate(sizes.T):
        totals = np.zeros((len(batch), signatures.shape[1]), np.float32)
        for place in range(int(wanted.max())):
            picks = table.closest(totals) if place else table.first()
            rows = np.flatnonzero(wanted > place)
            picks = picks[rows]
            members[rows, number, place] = table.devices[rows, picks]
            totals[rows] += table.columns[rows, :-2, picks]
            table.sums[rows, picks] = -np.inf
        taken = int(sizes[:, : number + 1].sum(axis=1).min())
        if seen - table.sums.shape[1] + (table.sums.shape[1] // 4) < taken:
            table.compact()
    return members


MAX_LITERAL_WORK = 100_000_000
"""Places x devices x classes that the literal greedy processes in about a second."""


def visit_sets(
    settings: VisitArranger, sets: int, signatures: NDArray[np.float64], reach: NDArray[np.bool_], seed: int
) -> list[tuple[int, tuple[int, ...]]]:
    """Return `sets` sets as (site, devices in order of addition), by column and row number of `reach`."""
    reservations = Reservations(reach)
    sites = share_sets(reservations, reach.sum(axis=0), sets, generator(seed, "sites"))
    sizes = [1 + more for more in deal(reservations, sites, settings.size - 1)]
    work = sum(sizes) * (signatures.size + reach.size)
    if settings.search == "fast" or (settings.search == "auto" and work > MAX_LITERAL_WORK):
        found = fast_sets(signatures, reach, np.array(sites, np.int64), np.array(sizes, np.int64), seed)
        return list(zip(sites, found, strict=True))
    search, starts = LiteralSearch(signatures), generator(seed, "starts")
    return [
        (site, tuple(gather(search, reservations, site, size, starts))) for site, size in zip(sites, sizes, strict=True)
    ]
