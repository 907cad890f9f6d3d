"""How good several models are together: each is asked by itself, and what they say is added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from sojourn.model.metrics import cross_entropies
from sojourn.model.scoring import BATCH, Scores

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from sojourn.model.graphs import Graphs
    from sojourn.model.scoring import ScoredSamples

Way = Literal["logits", "probabilities"]
"""What is added up: DENSE's teachers are the mean of their logits, voters the sum of their probabilities."""
LEAST = 1e-30
"""A probability below this counts as so much, where its logarithm is taken."""


def scores_together(graphs: Graphs, models: Iterable[NDArray[np.float32]], samples: ScoredSamples, way: Way) -> Scores:
    """Accuracy and loss of what the models say together; one model is in memory at a time."""
    total: NDArray[np.float64] | None = None
    count = 0
    for count, vector in enumerate(models, 1):  # noqa: B007
        said = _said(graphs, vector, samples, way)
        total = said if total is None else total + said
    if total is None:
        raise ValueError("nobody says anything")
    logits = total / count if way == "logits" else np.log(np.maximum(total, LEAST))
    losses = cross_entropies(logits.astype(np.float32), samples.y)
    return Scores(float((total.argmax(1) == samples.y).mean()), float(losses.mean()), {})


def _said(graphs: Graphs, vector: NDArray[np.float32], samples: ScoredSamples, way: Way) -> NDArray[np.float64]:
    rows = (slice(at, at + BATCH) for at in range(0, len(samples.y), BATCH))
    logits = np.concatenate([graphs.outputs(vector, samples.taken(each)) for each in rows]).astype(np.float64)
    return logits if way == "logits" else softmax(logits)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities, row by row."""
    raised = np.exp(logits - logits.max(-1, keepdims=True))
    found: NDArray[np.float64] = raised / raised.sum(-1, keepdims=True)
    return found
