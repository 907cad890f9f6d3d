"""The quality of an arrangement: VTS, Intra-CS and Inter-CS (VISIT, section IV), and measures of true label counts.

iota, the cosine similarity, has its letter from the paper. Means run over actual pairs, not over the paper's loose
normalisers; undefined values are NaN, never 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sojourn.randomness import generator

Signatures = NDArray[np.float64]
Sets = Sequence[Sequence[int]]

MAX_PAIRS = 500_000
"""CPD is the median over all pairs of sets, or, if there are more than this, over a fixed sample of this many."""
PAIRS_AT_ONCE = 32_768
SIGMA = 1.0
"""The width of the Gaussian kernel of CPD."""


def quality(signatures: Signatures, sets: Sets, *, by_class: bool = True, counts: bool = False) -> dict[str, float]:
    """Return the measures of these sets of row numbers.

    by_class: rows have one number for each class; without it there is no target and no VTS. counts: they are the true
    numbers of samples of each class, which also gives balance, covered classes and CPD.
    """
    measured = {"vts": vts(signatures, sets)} if by_class else {}
    measured |= {"intra_cs": intra_cs(signatures, sets), "inter_cs": inter_cs(signatures, sets)}
    if counts:
        measured |= {"balance": balance(signatures, sets), "covered": covered(signatures, sets)}
        measured["cpd"] = cpd(signatures, sets)
    return measured


def vts(signatures: Signatures, sets: Sets) -> float:
    """Return the virtual target similarity: the mean over sets of iota(v^C, (1, ..., 1)). High: balanced sets."""
    if not sets:
        return float("nan")
    units = _units(_set_means(signatures, sets))
    return float(np.mean(units.sum(axis=1))) / float(np.sqrt(units.shape[1]))


def intra_cs(signatures: Signatures, sets: Sets) -> float:
    """Return the mean iota(v_i, v_j) over the pairs of a set, averaged over sets with pairs. Low: sets are diverse."""
    paired = [members for members in sets if len(members) > 1]
    if not paired:
        return float("nan")
    units = _units(signatures)
    return float(np.mean(_pair_means(_set_sums(units, paired), _set_sums(units * units, paired), _sizes(paired))))


def inter_cs(signatures: Signatures, sets: Sets) -> float:
    """Return the mean iota(v^Ci, v^Cj) over pairs of sets. High: the sets are similar."""
    if len(sets) < 2:
        return float("nan")
    units = _units(_set_means(signatures, sets))
    return float(_pair_means(units.sum(axis=0), np.sum(units * units, axis=0), np.array(len(sets))))


def balance(counts: Signatures, sets: Sets) -> float:
    """Return the mean over sets of min_c N_c / max_c N_c. 1: all classes have equally many samples."""
    totals = _totals(counts, sets)
    most = totals.max(axis=1)
    return _mean(np.divide(totals.min(axis=1), most, out=np.full(len(totals), np.nan), where=most > 0))


def covered(counts: Signatures, sets: Sets) -> float:
    """Return the mean over sets of the number of classes that they have samples of."""
    totals = _totals(counts, sets)
    return _mean(np.where(np.isnan(totals[:, 0]), np.nan, (totals > 0).sum(axis=1)))


def cpd(counts: Signatures, sets: Sets) -> float:
    """Return FedGSP's class probability distance, the median over pairs of sets. Low: the sets are similar.

    The squared MMD of two normalised class histograms P and Q with a Gaussian kernel on one-hot classes is
    (1 - exp(-1 / sigma^2)) |P - Q|^2.
    """
    if len(sets) < 2:
        return float("nan")
    totals = _totals(counts, sets)
    samples = totals.sum(axis=1, keepdims=True)
    shares = np.divide(totals, samples, out=np.full_like(totals, np.nan), where=samples > 0)
    left, right = _pairs(len(sets))
    distances = np.empty(len(left))
    for begin in range(0, len(left), PAIRS_AT_ONCE):
        some = slice(begin, begin + PAIRS_AT_ONCE)
        difference = shares[left[some]] - shares[right[some]]
        distances[some] = np.einsum("nc,nc->n", difference, difference)
    return float(np.median(distances)) * float(-np.expm1(-1 / SIGMA**2))


def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs of `count` items, or, if there are too many, a sample that depends only on `count`."""
    if count * (count - 1) // 2 <= MAX_PAIRS:
        left, right = np.triu_indices(count, 1)
        return left, right
    draw = generator(0, "pairs", count)
    first = draw.integers(count, size=MAX_PAIRS)
    return first, (first + draw.integers(1, count, size=MAX_PAIRS)) % count


def _mean(values: Signatures) -> float:
    """Return the mean; NaN for no values."""
    return float(values.mean()) if len(values) else float("nan")


def _sizes(sets: Sets) -> NDArray[np.int64]:
    """Return the number of devices of each set."""
    return np.array([len(members) for members in sets], np.int64)


def _set_sums(rows: Signatures, sets: Sets) -> Signatures:
    """Return the sum of the rows of each set; no set may be empty."""
    sizes = _sizes(sets)
    members = np.fromiter((member for each in sets for member in each), np.int64, int(sizes.sum()))
    sums: Signatures = np.add.reduceat(rows[members], np.cumsum(sizes) - sizes, axis=0)
    return sums


def _totals(rows: Signatures, sets: Sets) -> Signatures:
    """Return the sum of the rows of each set; the row of an empty set is NaN, and so are results derived from it."""
    totals = np.full((len(sets), rows.shape[1]), np.nan)
    filled = [members for members in sets if len(members)]
    if filled:
        totals[_sizes(sets) > 0] = _set_sums(rows, filled)
    return totals


def _set_means(signatures: Signatures, sets: Sets) -> Signatures:
    """Return v^C of each set, one row each; NaN for an empty set."""
    return _totals(signatures, sets) / np.maximum(1, _sizes(sets))[:, None]


def _units(rows: Signatures) -> Signatures:
    """Return every row at length 1; a zero row stays zero, which makes its cosine similarity 0."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.zeros_like(rows, dtype=np.float64)
    np.divide(rows, lengths, out=units, where=lengths != 0)
    return units


def _pair_means(sums: Signatures, squares: Signatures, sizes: NDArray[np.int64]) -> Signatures:
    """The mean cosine similarity over all pairs of unit rows, from their sum and their squares' sum by class.

    The sum over pairs is (|sum of units|^2 - sum of |unit|^2) / 2, which needs no table of all pairs.
    """
    means: Signatures = (np.sum(sums * sums, axis=-1) - np.sum(squares, axis=-1)) / (sizes * (sizes - 1))
    return means
