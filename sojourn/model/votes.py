"""Votes of several models: what each says of samples, and what they say together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.model.metrics import softmax

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sojourn.model.graphs import Graphs

BATCH = 256


def probabilities(graphs: Graphs, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float64]:
    """A model's probabilities for each sample: of its classes, and of the unknown where it has such an answer."""
    ask = graphs.votes if graphs.decides else graphs.outputs
    return softmax(np.concatenate([ask(vector, x[at : at + BATCH]) for at in range(0, len(x), BATCH)]))


def votes_of(said: Sequence[NDArray[np.float64]], most: int = 0, *, unknown: bool = True) -> NDArray[np.float64]:
    """The sum of the models' probabilities of the classes that are known.

    most: how many models vote on a sample, those that find it the least unknown; 0 for all.
    """
    each = np.stack(said)
    if not unknown:
        return np.asarray(each.sum(0))
    if most and most < len(each):
        doubt = each[:, :, -1].argsort(0, kind="stable").argsort(0, kind="stable")
        each = np.where((doubt < most)[:, :, None], each, 0.0)
    found: NDArray[np.float64] = each[:, :, :-1].sum(0)
    return found
