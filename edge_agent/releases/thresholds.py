"""From which score on a sample is an anomaly on this device: measured on its own data, else as the card says."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.releases.folder import Threshold
from sojourn.errors import ModelError
from sojourn.model.answers import scores_of, threshold_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.samples import Samples
    from sojourn.model.predictor import ReleasePredictor

SCORED = 4096
"""Of the device's samples at most, spread over all of them."""
FEWEST = 20
"""Fewer samples say nothing of a share that is above them all."""
_AT_ONCE, _MOST_SECONDS = 64, 30.0


def threshold_for(predictor: ReleasePredictor, samples: Samples | None) -> Threshold | None:
    """The threshold for a release that gives scores; None for all others.

    ModelError where scores are no numbers: nothing would ever be an anomaly.
    """
    rule = predictor.card.anomaly
    if predictor.card.learns.kind != "reconstruction" or not rule:
        return None
    scores = _scores(predictor, samples)
    if len(scores) < FEWEST:
        return Threshold(rule.threshold, rule.quantile, 0)
    if not np.isfinite(scores).all():
        odd = int((~np.isfinite(scores)).sum())
        raise ModelError(f"{predictor.name} gives no finite score for {odd} of {len(scores)} samples of this device")
    return Threshold(threshold_in(scores, rule.quantile), rule.quantile, len(scores))


def spread(there: int, most: int) -> NDArray[np.int64]:
    """Which of so many samples to take: evenly from the first to the last."""
    return np.unique(np.linspace(0, there - 1, min(most, there)).astype(np.int64))


def _scores(predictor: ReleasePredictor, samples: Samples | None) -> NDArray[np.float64]:
    """Scores of samples that nobody calls faulty, as many as there is time for."""
    found: list[NDArray[np.float64]] = []
    if samples is not None and len(samples):
        order, begun = spread(len(samples), SCORED), perf_counter()
        order = order[np.asarray(samples.y)[order] == 0]
        order = np.random.default_rng(0).permutation(order)  # what there is no time for lies everywhere
        for at in range(0, len(order), _AT_ONCE):
            x, _ = samples.batch(order[at : at + _AT_ONCE], predictor.card.input.dtype)
            found.append(scores_of(predictor.answer(x)).astype(np.float64))
            if perf_counter() - begun > _MOST_SECONDS:
                break
    return np.concatenate(found) if found else np.zeros(0)
