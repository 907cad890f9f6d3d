"""What a prediction graph answers, in a task's own terms: shares of classes, values, tokens, scores of anomalies.

For drift each answer falls into one of a few groups: its class; the likeliest of several labels, or none; the stratum
of a value; whether a score is above the threshold; the token that comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sojourn.model.metrics import figures, tallied
from sojourn.model.strata import numbers, places

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.metrics import Tally
    from sojourn.protocol.task import TaskSpec

    Floats = NDArray[np.float32]

SCORE = "score"
"""What the graph of a reconstruction calls how unlike the others a sample is."""


class Answer(NamedTuple):
    """What a graph gave for a batch: a row for each sample; of a reconstruction with a score for each, too."""

    outputs: Floats
    scores: Floats | None = None


def given_by(task: TaskSpec) -> tuple[str, ...]:
    """What the prediction graph of a release calls its results."""
    return (task.answers, SCORE) if task.kind == "reconstruction" else (task.answers,)


def shares(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """How likely each class is, by softmax over the last axis."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True, initial=-np.inf))
    found: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return found


def label_shares(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """How likely each label is by itself."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64))))


def groups(task: TaskSpec, answer: Answer, threshold: float = np.inf) -> NDArray[np.int64]:
    """The group that each answer falls into."""
    outputs = answer.outputs
    match task.kind:
        case "classification":
            return np.asarray(outputs.argmax(axis=1))
        case "multilabel":
            return np.asarray(np.where((outputs > 0).any(axis=1), outputs.argmax(axis=1), outputs.shape[1]))
        case "tokens":
            return np.asarray(outputs[:, -1].argmax(axis=-1))
        case "reconstruction":
            return np.asarray(scores_of(answer) > threshold, np.int64)
        case _:
            return places(task.strata, numbers(task, outputs, outputs))


def tally(task: TaskSpec, answer: Answer, x: NDArray[np.generic], y: NDArray[np.generic]) -> Tally:
    """What these answers add to the figures; y says of a reconstruction's samples which are faulty (1)."""
    kind, outputs = task.kind, answer.outputs
    if kind == "reconstruction":
        return tallied(kind, outputs, x, scores_of(answer), y.astype(np.bool_) if y.any() else None)
    losses = _surprise(outputs, y) if kind == "tokens" else np.zeros(len(outputs))
    return tallied(kind, outputs, y, losses)


def figures_of(task: TaskSpec, tally: Tally) -> dict[str, float]:
    """The figures that a release's answers tell, the main one first; it has a loss only of a reconstruction."""
    told = figures(task.kind, tally)
    return told if task.kind == "reconstruction" else {name: told[name] for name in told if name != "loss"}


def scores_of(answer: Answer) -> Floats:
    """The scores of a reconstruction."""
    if answer.scores is None:
        raise ValueError("this is no answer of a reconstruction")
    return answer.scores


def threshold_in(scores: NDArray[np.floating], quantile: float) -> float:
    """The score that this share of all does not exceed."""
    return float(np.quantile(scores.astype(np.float64), quantile, method="higher"))


def _surprise(outputs: Floats, y: NDArray[np.generic]) -> NDArray[np.float64]:
    """The mean cross-entropy over the places of each sequence."""
    chances = np.take_along_axis(shares(outputs), y.astype(np.int64)[..., np.newaxis], axis=-1)
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = -np.log(chances[..., 0]).reshape(len(y), -1).mean(axis=1)
    return found
