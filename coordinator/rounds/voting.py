"""How good several models are together: each is asked by itself, and what they say is put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.model.metrics import cross_entropies
from sojourn.model.scoring import BATCH, Scores
from sojourn.model.votes import probabilities, votes_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from sojourn.model.graphs import Graphs
    from sojourn.model.scoring import ScoredSamples

    Models = Iterable[NDArray[np.float32]]

LEAST = 1e-30
"""A probability below this counts as so much, where its logarithm is taken."""


def scores_together(graphs: Graphs, models: Models, samples: ScoredSamples) -> Scores:
    """Of the mean of the models' answers, as DENSE's teachers say them; one model is in memory at a time."""
    total, count = np.zeros(0), 0
    for vector in models:
        rows = (slice(at, at + BATCH) for at in range(0, len(samples.y), BATCH))
        said = np.concatenate([graphs.outputs(vector, samples.taken(each)) for each in rows]).astype(np.float64)
        total, count = said if not count else total + said, count + 1
    return _scores(total / max(1, count), total, samples)


def scores_of_vote(graphs: Graphs, models: Models, samples: ScoredSamples, most: int) -> Scores:
    """Of a vote: the sum of the models' probabilities."""
    x = samples.taken(slice(0, len(samples.y)))
    votes = votes_of([probabilities(graphs, vector, x) for vector in models], most, unknown=graphs.decides)
    return _scores(np.log(np.maximum(votes, LEAST)), votes, samples)


def _scores(logits: NDArray[np.float64], votes: NDArray[np.float64], samples: ScoredSamples) -> Scores:
    losses = cross_entropies(logits.astype(np.float32), samples.y)
    return Scores(float((votes.argmax(1) == samples.y).mean()), float(losses.mean()), {})
