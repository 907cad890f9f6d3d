"""VISIT's greedy for large fleets: the same rule, with cheaper sums, in blocks where there are many places to fill.

The literal greedy looks at all N devices for each of L·k places, which is quadratic where L·k grows with N. Here, while
more than `PLACES` places are open, the fleet is cut at random into blocks with about `PLACES` open places each, every
block makes one half of its sets by Algorithm 1, and those whom nobody took come together again for the next cut. So a
place sees some thousands of devices, and the last sets, for which the greedy leaves the worst choice, are made once
for the whole fleet and not once in each block. The last `PLACES` places, or all where there are no more or the fleet
is small (`LITERAL`), are filled as the literal greedy does it, from everyone who is left: a fleet that needs no blocks
gets the literal greedy's sets. The time is O(N·PLACES·C).

Where sites reach different devices, a block belongs to a site: for each cut a device is offered to one of the sites
that it reaches (`Reservations.split`), and no other sees it. Only the last places see all who reach their site. The
sets of each site and their sizes are given, so no set that could have had a device is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.reservations import Reservations
from hierarchy.arranging.visit_greedy import SHORT, QuickSearch, gather
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Rows = NDArray[np.int64]
    Table = NDArray[np.float64]

PLACES = 4096
"""As many open places as one block has; up to this many the whole fleet is one."""
SPARE = 2
"""A cut offers at most this many times as many devices for each open place as the whole fleet had at first."""
CLOSE = 1e-6
"""Similarities this close are equal in single precision."""
LITERAL = 100_000_000
"""Up to so many pairs of an open place and a device, too, all places are filled from everyone who is left."""
WIDEST = 131_072
"""Devices that a place sees at most: the best of so many is hardly worse than the best of more."""
TOGETHER = 65536
"""Devices of the blocks that take their steps together: what is known of them stays in the cache."""


@dataclass(frozen=True, eq=False)
class FleetBlock:
    """Devices in random order, the numbers of the sets that are made of them, and the sets' sizes."""

    devices: Rows
    sets: Rows
    sizes: Rows


def fast_sets(signatures: Table, reach: Mask, sites: Rows, sizes: Rows, seed: int) -> list[tuple[int, ...]]:
    """The devices of each set, in order of addition; set i is at `sites[i]` and has `sizes[i]` places."""
    members: list[tuple[int, ...]] = [()] * len(sites)
    left, due = np.arange(len(reach)), np.arange(len(sites))
    richness = SPARE * len(left) / max(1, int(sizes.sum()))
    for cut in count():
        most = richness if cut else np.inf
        parts = _offered(reach[left], sites[due], sizes[due], most, generator(seed, "cut", cut))
        parts = [left[part] for part in parts]
        places = int(sizes[due].sum())
        if places <= PLACES or places * len(left) <= LITERAL:
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


def _offered(reach: Mask, sites: Rows, sizes: Rows, most: float, draw: np.random.Generator) -> list[Rows]:
    """The devices that each site is offered, in random order: `most` for each open place, and never too few."""
    parts = _claimed(reach, sites, sizes).split(draw)
    places = np.bincount(sites, sizes, reach.shape[1]).tolist()
    return [
        part[: int(max(here, min(len(part), most * here, WIDEST * max(1, here / PLACES))))] if here else part[:0]
        for part, here in zip(parts, places, strict=True)
    ]


def _claimed(reach: Mask, sites: Rows, sizes: Rows) -> Reservations:
    """Reservations that promise every site as many devices as its sets have places."""
    reservations = Reservations(reach)
    for site, places in enumerate(np.bincount(sites, sizes, reach.shape[1]).tolist()):
        reservations.claim(site, int(places))
    return reservations


def _cut(devices: Rows, sets: Rows, sizes: Rows) -> Iterator[FleetBlock]:
    """One site's devices in blocks with equal shares of the sets; each with the first half of its sets."""
    places = np.concatenate([[0], np.cumsum(sizes[sets])])
    blocks = min(len(sets), -(-int(places[-1]) // PLACES))
    bounds = np.arange(blocks + 1) * len(sets) // max(1, blocks)
    rest = np.arange(blocks + 1) * (len(devices) - places[-1]) // max(1, blocks)
    ends = places[bounds] + rest
    for begin, end, first, last in zip(bounds, bounds[1:], ends, ends[1:], strict=False):
        now = sets[begin : (begin + end + 1) // 2]
        yield FleetBlock(devices[first:last], now, sizes[now])


def _batches(blocks: Sequence[FleetBlock]) -> Iterator[list[FleetBlock]]:
    """Blocks of about the same length, as many as may go together."""
    batch: list[FleetBlock] = []
    for block in sorted(blocks, key=lambda block: -len(block.devices)):
        if batch and (len(batch) + 1) * len(batch[0].devices) > TOGETHER:
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


class _BlockTable:
    """The devices that the blocks of a batch have left, side by side: one row for each block, padded at its end.

    Single precision is enough to tell good from bad, and twice as quick. One product of (2 t, 1, |t|^2) with the
    columns (v, |v|^2, 1) gives |t + v|^2.
    """

    def __init__(self, signatures: Table, batch: Sequence[FleetBlock]) -> None:
        self.devices = np.full((len(batch), len(batch[0].devices)), -1)
        for row, block in zip(self.devices, batch, strict=True):
            row[: len(block.devices)] = block.devices
        picked = signatures[self.devices]
        squares = np.einsum("bnc,bnc->bn", picked, picked)
        # In units of the longest signature, so that no square is out of range.
        longest = float(np.sqrt(squares.max())) or 1.0
        self.sums = (picked.sum(axis=2) / longest).astype(np.float32)
        self.sums[self.devices < 0] = -np.inf
        self.columns = np.ones((len(batch), signatures.shape[1] + 2, self.devices.shape[1]), np.float32)
        self.columns[:, :-2] = picked.transpose(0, 2, 1) / longest
        self.columns[:, -2] = squares / longest**2
        self._make_room()

    def first(self) -> Rows:
        """The place of the first device that is left in each block: a random one, since the order is."""
        places: Rows = np.argmax(self.sums > -np.inf, axis=1)
        return places

    def closest(self, totals: NDArray[np.float32]) -> Rows:
        """The place of the device in each block that brings its set's sum closest to the target's direction."""
        squares = np.einsum("bc,bc->b", totals, totals)[:, None]
        asked = np.concatenate([2 * totals, np.ones_like(squares), squares], axis=1)
        lengths = np.matmul(asked[:, None], self.columns, out=self._lengths)[:, 0]
        np.sqrt(np.maximum(lengths, SHORT, out=lengths), out=lengths)
        scores = np.add(self.sums, totals.sum(axis=1)[:, None], out=self._scores)
        scores /= lengths
        places: Rows = np.argmax(scores >= scores.max(axis=1, keepdims=True) - CLOSE, axis=1)
        return places

    def close_ranks(self) -> None:
        """Forget who is taken, so that nobody looks at them again."""
        gone = self.sums == -np.inf
        order = np.argsort(gone, axis=1, kind="stable")[:, : int((~gone).sum(axis=1).max())]
        self.devices = np.take_along_axis(self.devices, order, axis=1)
        self.sums = np.take_along_axis(self.sums, order, axis=1)
        self.columns = np.take_along_axis(self.columns, order[:, None, :], axis=2)
        self._make_room()

    def _make_room(self) -> None:
        """Room for what every step works out: asking the system for it each time costs more than the sums."""
        self._scores = np.empty_like(self.sums)
        self._lengths = np.empty((len(self.sums), 1, self.sums.shape[1]), np.float32)


def _grow(signatures: Table, batch: Sequence[FleetBlock]) -> Rows:
    """The sets of blocks that take their steps together: devices by block, set and place."""
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
            table.close_ranks()
    return members
