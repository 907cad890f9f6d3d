"""The reported numbers of each device as arrangers use them.

Normalised, reduced to principal components, or unchanged, as the estimator asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierarchy.arranging.metrics import as_distributions
from sojourn.errors import Fault
from sojourn.model.metrics import softmax
from sojourn.parts import ClassifierEstimator, ConfidenceEstimator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.parts import Estimator

    Rows = NDArray[np.float64]

ROUNDING = 1e-12
"""A share of the variance this close to what is asked for is enough."""


def rows(estimator: Estimator, raw: Rows) -> Rows:
    """One row for each device, as the estimator's paper has it."""
    match estimator:
        case ConfidenceEstimator():
            return as_distributions(raw) if estimator.normalise == "sum" else softmax(raw)  # FedSeq's equation 3
        case ClassifierEstimator():
            return principal(raw, estimator.variance)
        case _:
            return raw


def principal(raw: Rows, variance: float) -> Rows:
    """The rows along the fewest principal components that hold this share of the variance.

    A component points where its largest loading is positive (the first of equals), so that every machine gives the same
    signs. Rows without any variance become a column of zeros.
    """
    if not np.isfinite(raw).all():
        raise Fault("principal components of rows that are not finite")
    # The mean of equal numbers can be off by a bit, so rows that are all alike must be seen before it is taken.
    if not raw.size or not np.ptp(raw, axis=0).any():
        return np.zeros((len(raw), 1))
    left, sizes, loadings = np.linalg.svd(raw - raw.mean(axis=0), full_matrices=False)
    shares = np.cumsum(np.square(sizes)) / np.square(sizes).sum()
    kept = int(np.argmax(shares >= variance - ROUNDING)) + 1
    largest = np.argmax(np.abs(loadings[:kept]), axis=1)
    signs = np.sign(loadings[np.arange(kept), largest])
    return np.asarray(left[:, :kept] * sizes[:kept] * signs)
