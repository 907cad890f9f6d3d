"""The step of VISIT's greedy: one set under Algorithm 1, and two ways to find who joins it next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hierarchy.arranging.reservations import Reservations

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

    def closest(self, total: Table, allowed: Rows) -> int:
        """The allowed device whose signature brings the set's sum closest to the virtual target's direction."""


class LiteralSearch:
    """Every sum and its cosine, as the paper writes them.

    The cosine of a sum is that of the mean, and the target's length is the same for all: both are left out.
    """

    def __init__(self, signatures: Table) -> None:
        self.signatures = signatures

    def closest(self, total: Table, allowed: Rows) -> int:
        """The lowest of the best."""
        sums = self.signatures[allowed] + total
        lengths = np.sqrt(np.einsum("nc,nc->n", sums, sums))
        scores = np.divide(sums.sum(axis=1), lengths, out=np.zeros(len(sums)), where=lengths > 0)
        return _first_of_the_best(scores, allowed)


class QuickSearch:
    """The same by |t + v|^2 = |t|^2 + 2 t·v + |v|^2: one product over the fleet instead of all sums."""

    def __init__(self, signatures: Table) -> None:
        self.signatures = signatures
        self._sums = signatures.sum(axis=1)
        self._squares = np.einsum("nc,nc->n", signatures, signatures)
        self._least = SHORT * self._squares.max(initial=0.0) or 1.0

    def closest(self, total: Table, allowed: Rows) -> int:
        """The lowest of the best."""
        if FEW * len(allowed) < len(self._sums):
            scores = self._scores(total, self.signatures[allowed], self._squares[allowed], self._sums[allowed])
        else:
            scores = self._scores(total, self.signatures, self._squares, self._sums)[allowed]
        return _first_of_the_best(scores, allowed)

    def _scores(self, total: Table, signatures: Table, squares: Table, sums: Table) -> Table:
        lengths = signatures @ (2 * total)
        lengths += squares
        lengths += total @ total
        np.sqrt(np.maximum(lengths, self._least, out=lengths), out=lengths)
        scores: Table = sums + total.sum()
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
        newcomer = search.closest(total, reservations.candidates(site))
        reservations.take(site, newcomer)
        members.append(newcomer)
        total += search.signatures[newcomer]
    return members
