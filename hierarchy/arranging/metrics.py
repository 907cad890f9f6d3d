"""FedSeq's grouping metrics tau(D_j, D_S): how much each device would add to a superclient; the largest is taken.

Each takes all devices' rows at once. The paper leaves KL's arguments open: the authors' code seeks balance,
1 - KL(midpoint || uniform); `pairwise` is KL(D_j || D_S), where a class that D_S has not counts as 1e-12 of it, since
infinities could not be told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.parts.arrangers import OF_DISTRIBUTIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts import FedSeqArranger

    Rows = NDArray[np.float64]

__all__ = ["OF_DISTRIBUTIONS", "as_distributions", "tau"]

RARE = 1e-12
"""The least share of a class in a divergence."""


def as_distributions(rows: Rows) -> Rows:
    """Every row divided by its sum; a row of zeros counts as uniform."""
    sums = rows.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, sums, out=np.full(rows.shape, 1 / rows.shape[1]), where=sums > 0))


def tau(settings: FedSeqArranger, rows: Rows, estimate: Rows) -> Rows:
    """The metric between each row and a superclient's estimate."""
    match settings.tau:
        case "cosine":
            return cosine(rows, estimate)
        case "euclidean":
            return np.asarray(np.linalg.norm(rows - estimate, axis=1))
        case "wasserstein":
            return wasserstein(rows, estimate)
        case "kl":
            return balance(rows, estimate) if settings.kl == "balance" else divergence(rows, estimate)
        case "gini":
            return gini(rows, estimate)


def cosine(rows: Rows, estimate: Rows) -> Rows:
    """1 - cosine similarity, which counts as 0 where a row is all zeros."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(estimate)
    return np.asarray(1 - np.divide(rows @ estimate, lengths, out=np.zeros(len(rows)), where=lengths > 0))


def wasserstein(rows: Rows, estimate: Rows) -> Rows:
    """The 1-Wasserstein distance with class c at position c: the area between the cumulated distributions."""
    return np.asarray(np.abs(np.cumsum(rows - estimate, axis=1)).sum(axis=1))


def balance(rows: Rows, estimate: Rows) -> Rows:
    """1 - KL(midpoint || uniform)."""
    middle = (rows + estimate) / 2
    logs = np.log(middle, out=np.zeros_like(middle), where=middle > 0)
    return np.asarray(1 - np.log(rows.shape[1]) - (middle * logs).sum(axis=1))


def divergence(rows: Rows, estimate: Rows) -> Rows:
    """KL(D_j || D_S)."""
    logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0) - np.log(np.maximum(estimate, RARE))
    return np.asarray((rows * logs).sum(axis=1))


def gini(rows: Rows, estimate: Rows) -> Rows:
    """The Gini-Simpson impurity of the midpoint: 1 - the sum of its squares."""
    return np.asarray(1 - np.square((rows + estimate) / 2).sum(axis=1))
