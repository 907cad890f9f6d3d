"""The step of VISIT's greedy: one set under Algorithm 1, and two ways to find who joins it next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hierarchy.arranging.reservations import Reservations

    Mask = NDArray[np.bool_]
    Rows = NDArray[np.int64]
    Table = NDArray[np.float64]

TIE = 1e-12
"""Similarities this close are equal: the order in which a machine sums must not decide."""
SHORT = 1e-12
"""A squared length below this share of the longest signature's is rounding: such a sum is similar to nothing."""


FEW = 4
"""With less than one in so many allowed, only they are looked at; else all, which takes no copy of the table."""


class Search(Protocol):
    """How the next device of a set is found."""

    signatures: Table

    def closest(self, total: Table, allowed: Rows, site: int) -> int:
        """The device, allowed at a site, whose signature brings the set's sum closest to the target's direction."""


class LiteralSearch:
    """Every sum and its cosine, as the paper writes them.

    The cosine of a sum is that of the mean, and the target's length is the same for all: both are left out.
    """

    def __init__(self, signatures: Table) -> None:
        self.signatures = signatures

    def closest(self, total: Table, allowed: Rows, site: int) -> int:  # noqa: ARG002  # all sites are alike
        """The lowest of the best."""
        sums = self.signatures[allowed] + total
        lengths = np.sqrt(np.einsum("nc,nc->n", sums, sums))
        scores = np.divide(sums.sum(axis=1), lengths, out=np.zeros(len(sums)), where=lengths > 0)
        return _first_of_the_best(scores, allowed)


@dataclass(frozen=True, eq=False)
class _SiteTable:
    """Devices that a site was allowed, side by side: they are looked at for each of its places."""

    devices: Rows
    signatures: Table
    squares: Table
    sums: Table


class QuickSearch:
    """The same by |t + v|^2 = |t|^2 + 2 t·v + |v|^2: one product over the fleet instead of all sums."""

    def __init__(self, signatures: Table) -> None:
        self.signatures = signatures
        squares = np.einsum("nc,nc->n", signatures, signatures)
        self._everybody = _SiteTable(np.arange(len(signatures)), signatures, squares, signatures.sum(axis=1))
        self._least = SHORT * squares.max(initial=0.0) or 1.0
        self._sites: dict[int, _SiteTable] = {}
        self._marked = np.zeros(len(signatures), bool)

    def closest(self, total: Table, allowed: Rows, site: int) -> int:
        """The lowest of the best."""
        if FEW * len(allowed) < len(self.signatures):
            table, allowed_there = self._at(site, allowed)
            scores = self._scores(total, table)[allowed_there]
        else:
            scores = self._scores(total, self._everybody)[allowed]
        return _first_of_the_best(scores, allowed)

    def _at(self, site: int, allowed: Rows) -> tuple[_SiteTable, Mask]:
        """A table with those who are allowed at a site, and which of its rows they are: they become fewer and fewer."""
        known = self._sites.get(site)
        if known is not None and len(known.devices) <= FEW * len(allowed):
            self._marked[allowed] = True
            rows: Mask = self._marked[known.devices]
            self._marked[allowed] = False
            if np.count_nonzero(rows) == len(allowed):
                return known, rows
        everybody = self._everybody
        table = _SiteTable(allowed, self.signatures[allowed], everybody.squares[allowed], everybody.sums[allowed])
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


def _first_of_the_best(scores: Table, rows: Rows) -> int:
    return int(rows[np.argmax(scores >= scores.max() - TIE)])


def gather(search: Search, reservations: Reservations, site: int, size: int, starts: np.random.Generator) -> list[int]:
    """One set in order of addition (Algorithm 1, lines 13 to 20)."""
    members = [int(starts.choice(reservations.candidates(site)))]
    reservations.take(site, members[0])
    total = search.signatures[members[0]].copy()
    while len(members) < size:
        newcomer = search.closest(total, reservations.candidates(site), site)
        reservations.take(site, newcomer)
        members.append(newcomer)
        total += search.signatures[newcomer]
    return members
