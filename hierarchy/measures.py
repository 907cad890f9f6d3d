"""The quality of an arrangement, seen through signatures: VTS, Intra-CS and Inter-CS (VISIT, section IV).

Means run over true pairs, not over the paper's loose normalisers; what is undefined is NaN, never 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Signatures = NDArray[np.float64]
    Sets = Sequence[Sequence[int]]


def quality(signatures: Signatures, sets: Sets) -> dict[str, float]:
    """All three measures of these sets of row numbers."""
    return {
        "vts": vts(signatures, sets),
        "intra_cs": intra_cs(signatures, sets),
        "inter_cs": inter_cs(signatures, sets),
    }


def vts(signatures: Signatures, sets: Sets) -> float:
    """Virtual target similarity: the mean over sets of iota(v^C, (1, ..., 1)). High: every set is balanced."""
    if not sets:
        return float("nan")
    units = _units(_set_means(signatures, sets))
    return float(np.mean(units.sum(axis=1))) / float(np.sqrt(units.shape[1]))


def intra_cs(signatures: Signatures, sets: Sets) -> float:
    """The mean iota(v_i, v_j) over the pairs of a set, averaged over the sets that have pairs. Low: diverse inside."""
    inside = [_pair_mean(signatures[list(members)]) for members in sets if len(members) > 1]
    return float(np.mean(inside)) if inside else float("nan")


def inter_cs(signatures: Signatures, sets: Sets) -> float:
    """The mean iota(v^Ci, v^Cj) over pairs of sets. High: the sets are alike."""
    return _pair_mean(_set_means(signatures, sets)) if len(sets) > 1 else float("nan")


def _set_means(signatures: Signatures, sets: Sets) -> Signatures:
    """v^C of each set, one row each; an empty set has none, so its row is NaN and so is what is made of it."""
    means = np.full((len(sets), signatures.shape[1]), np.nan)
    for row, members in zip(means, sets, strict=True):
        if len(members):
            row[:] = signatures[list(members)].mean(axis=0)
    return means


def _units(rows: Signatures) -> Signatures:
    """Every row at length 1; a zero row stays zero, which makes its cosine similarity 0."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.zeros_like(rows)
    np.divide(rows, lengths, out=units, where=lengths != 0)
    return units


def _pair_mean(rows: Signatures) -> float:
    """The mean cosine similarity over all pairs of rows.

    The sum over pairs is (|sum of units|^2 - sum of |unit|^2) / 2, which needs no table of all pairs.
    """
    units = _units(rows)
    total = units.sum(axis=0)
    return float(total @ total - np.sum(units * units)) / (len(rows) * (len(rows) - 1))
