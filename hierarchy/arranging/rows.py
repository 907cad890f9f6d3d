"""The rows of reported numbers that arrangers use, and FedSeq's grouping metrics on them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sojourn.errors import Fault
from sojourn.model.metrics import softmax
from sojourn.parts import ClassifierEstimator, ConfidenceEstimator, Estimator, FedSeqArranger

Rows = NDArray[np.float64]

# FedSeq's grouping metrics tau(D_j, D_S): how much each device would add to a superclient; the largest is taken.
#
# Each takes all devices' rows at once. The paper leaves KL's arguments open: the authors' code seeks balance,
# 1 - KL(midpoint || uniform); `pairwise` is KL(D_j || D_S), where a class that D_S lacks counts as 1e-12 of it, since
# infinities could not be compared.

RARE = 1e-12
"""The minimum share of a class in a divergence."""


def as_distributions(rows: Rows) -> Rows:
    """Return every row divided by its sum; a row of zeros counts as uniform."""
    sums = rows.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, sums, out=np.full(rows.shape, 1 / rows.shape[1]), where=sums > 0))


def tau(settings: FedSeqArranger, rows: Rows, estimate: Rows) -> Rows:
    """Return the metric between each row and a superclient's estimate."""
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
    """Return 1 - cosine similarity; the similarity of a row of zeros counts as 0."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(estimate)
    return np.asarray(1 - np.divide(rows @ estimate, lengths, out=np.zeros(len(rows)), where=lengths > 0))


def wasserstein(rows: Rows, estimate: Rows) -> Rows:
    """Return the 1-Wasserstein distance with class c at position c: the area between the cumulated distributions."""
    return np.asarray(np.abs(np.cumsum(rows - estimate, axis=1)).sum(axis=1))


def balance(rows: Rows, estimate: Rows) -> Rows:
    """Return 1 - KL(midpoint || uniform)."""
    middle = (rows + estimate) / 2
    logs = np.log(middle, out=np.zeros_like(middle), where=middle > 0)
    return np.asarray(1 - np.log(rows.shape[1]) - (middle * logs).sum(axis=1))


def divergence(rows: Rows, estimate: Rows) -> Rows:
    """Return KL(D_j || D_S)."""
    logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0) - np.log(np.maximum(estimate, RARE))
    return np.asarray((rows * logs).sum(axis=1))


def gini(rows: Rows, estimate: Rows) -> Rows:
    """Return the Gini-Simpson impurity of the midpoint: 1 - the sum of its squares."""
    return np.asarray(1 - np.square((rows + estimate) / 2).sum(axis=1))


# The rows that arrangers use: normalised, reduced to principal components, or unchanged, depending on the estimator.

ROUNDING = 1e-12
"""The tolerance when a share of the variance is compared with the requested one."""


def rows(estimator: Estimator, raw: Rows) -> Rows:
    """Return one row for each device, as defined in the estimator's paper."""
    match estimator:
        case ConfidenceEstimator():
            return as_distributions(raw) if estimator.normalise == "sum" else softmax(raw)  # FedSeq's equation 3
        case ClassifierEstimator():
            return principal(raw, estimator.variance)
        case _:
            return raw


def principal(raw: Rows, variance: float) -> Rows:
    """Return the rows along the fewest principal components that hold this share of the variance.

    A component points where its largest loading is positive (the first of equals), so that every machine gives the same
    signs. Rows without any variance become a column of zeros.
    """
    if not np.isfinite(raw).all():
        raise Fault("principal components of rows that are not finite")
    # The mean of equal numbers can be off by a bit, so check for equal rows before computing it.
    if not raw.size or not np.ptp(raw, axis=0).any():
        return np.zeros((len(raw), 1))
    left, sizes, loadings = np.linalg.svd(raw - raw.mean(axis=0), full_matrices=False)
    shares = np.cumsum(np.square(sizes)) / np.square(sizes).sum()
    kept = int(np.argmax(shares >= variance - ROUNDING)) + 1
    largest = np.argmax(np.abs(loadings[:kept]), axis=1)
    signs = np.sign(loadings[np.arange(kept), largest])
    return np.asarray(left[:, :kept] * sizes[:kept] * signs)
