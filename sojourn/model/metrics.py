"""How good a model's answers are, as sums that add over batches and devices, and as figures made of such sums.

A tally of one batch added to that of another is the tally of both, whoever made them: nothing here needs all samples
at once. Areas under curves (AUC) are read from fixed histograms, so they are exact up to the width of a bin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.protocol.figure_names import DIRECTIONS, FIGURES, MAIN, SHARES, Direction, better

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from sojourn.protocol.task import Kind

    Numbers = NDArray[np.float64]

__all__ = [
    "DIRECTIONS",
    "FIGURES",
    "MAIN",
    "SHARES",
    "Direction",
    "Tally",
    "added",
    "better",
    "figures",
    "tallied",
]

BINS = 4096
"""Of the histogram of scores from which an AUC is read."""
OCTAVES = 32
"""Scores of anomalies are told apart from 2 to the power of minus this to 2 to the power of this: by about 1 %."""
Tally = dict[str, "Numbers"]
"""Sums by name."""


def added(one: Mapping[str, Numbers], other: Mapping[str, Numbers]) -> Tally:
    """The tally of both."""
    names = dict.fromkeys((*one, *other))
    return {name: np.asarray(one.get(name, 0.0) + other.get(name, 0.0)) for name in names}


def tallied(  # the answers, what they are compared with, and what is known of both
    kind: Kind,
    outputs: NDArray[np.floating],
    targets: NDArray[np.generic] | None,
    losses: NDArray[np.floating],
    faulty: NDArray[np.bool_] | None = None,
) -> Tally:
    """The tally of one batch.

    outputs: logits of a classification (B, C), multilabel (B, C) or tokens (B, L, V); else values like the targets.
    targets: class numbers (B,) or (B, L), else values; those of a reconstruction are the samples themselves.
    losses: one for each sample. faulty: of a reconstruction, which samples are known to be anomalies.
    """
    wide = outputs.astype(np.float64)
    tally: Tally = {"samples": _number(len(losses)), "loss": _number(np.sum(losses, dtype=np.float64))}
    if targets is None:
        return tally
    match kind:
        case "classification":
            return tally | _of_classes(wide, targets.astype(np.int64))
        case "multilabel":
            return tally | _of_labels(wide, targets.astype(np.float64) > 0.5)
        case "tokens":
            right = wide.argmax(axis=-1) == targets
            return tally | {"right": _number(right.sum()), "answers": _number(right.size)}
        case "reconstruction":
            normal = ~faulty if faulty is not None else np.ones(len(losses), np.bool_)
            found = _of_values(wide[normal], targets[normal].astype(np.float64))
            kept = {name: found[name] for name in ("count", "square")}
            mean = {"samples": _number(normal.sum()), "loss": _number(np.sum(losses[normal], dtype=np.float64))}
            return mean | kept | ({} if faulty is None else _of_faults(losses.astype(np.float64), faulty))
        case _:
            return tally | _of_values(wide, targets.astype(np.float64))


def figures(kind: Kind, tally: Mapping[str, Numbers]) -> dict[str, float]:
    """The figures that a tally tells, the main one first; NaN where there is nothing to tell it from."""
    samples = float(tally.get("samples", 0.0))
    found = {"loss": _ratio(tally.get("loss", 0.0), samples)}
    if kind == "classification" and "hits" in tally:
        found |= {"accuracy": _ratio(tally["hits"].sum(), samples), "macro_f1": _macro_f1(tally)}
        found |= {"auc": _area(tally["scores"])} if "scores" in tally else {}
    elif kind == "multilabel" and "hits" in tally:
        right = tally["hits"] + samples - tally["claims"] - tally["members"] + tally["hits"]
        areas = [_area(each) for each in tally["scores"]]
        known = [each for each in areas if not np.isnan(each)]
        found |= {"macro_f1": _macro_f1(tally), "auc": float(np.mean(known)) if known else float("nan")}
        found |= {"accuracy": _ratio(right.sum(), samples * len(right))}
    elif kind == "tokens":
        with np.errstate(over="ignore"):
            found |= {"perplexity": float(np.exp(found["loss"]))}
        found |= {"accuracy": _ratio(tally["right"], tally["answers"])} if "right" in tally else {}
    elif "square" in tally:
        found |= _of_errors(kind, tally)
    if "faults" in tally:
        found["anomaly_auc"] = _area(tally["faults"])
    return {name: found[name] for name in FIGURES[kind] if name in found}


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities, row by row."""
    wide = logits.astype(np.float64)
    raised = np.exp(wide - wide.max(-1, keepdims=True))
    found: NDArray[np.float64] = raised / raised.sum(-1, keepdims=True)
    return found


def cross_entropies(logits: NDArray[np.floating], y: NDArray[np.integer]) -> Numbers:
    """The cross-entropy of each sample with its class."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y])


def _of_classes(logits: Numbers, y: NDArray[np.int64]) -> Tally:
    classes, guess = logits.shape[1], logits.argmax(axis=1)
    found = {
        "hits": np.bincount(y[guess == y], minlength=classes).astype(np.float64),
        "claims": np.bincount(guess, minlength=classes).astype(np.float64),
        "members": np.bincount(y, minlength=classes).astype(np.float64),
    }
    return found if classes != 2 else {**found, "scores": _histogram(_sigmoid(logits[:, 1] - logits[:, 0]), y == 1)}


def _of_labels(logits: Numbers, y: NDArray[np.bool_]) -> Tally:
    guess, scores = logits > 0, _sigmoid(logits)
    return {
        "hits": (guess & y).sum(axis=0).astype(np.float64),
        "claims": guess.sum(axis=0).astype(np.float64),
        "members": y.sum(axis=0).astype(np.float64),
        "scores": np.stack([_histogram(scores[:, at], y[:, at]) for at in range(y.shape[1])]),
    }


def _of_values(answers: Numbers, targets: Numbers) -> Tally:
    """By column, the last axis of what is compared: the quantities of a regression, or the channels of a series."""
    columns = targets.shape[-1] if targets.ndim > 1 else 1
    error, there = (answers - targets).reshape(-1, columns), targets.reshape(-1, columns)
    return {
        "count": np.full(columns, float(len(there))),
        "absolute": np.abs(error).sum(axis=0),
        "square": np.square(error).sum(axis=0),
        "sum": there.sum(axis=0),
        "sum_square": np.square(there).sum(axis=0),
    }


def _of_errors(kind: Kind, tally: Mapping[str, Numbers]) -> dict[str, float]:
    count, square = tally["count"], tally["square"]
    found = {"rmse": float(np.sqrt(_ratio(square.sum(), count.sum())))}
    if kind == "reconstruction":
        return found
    found["mae"] = _ratio(tally["absolute"].sum(), count.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = tally["sum_square"] - np.square(tally["sum"]) / count
        each = 1.0 - square / spread
    # A column that is always the same has nothing to be explained.
    told = each[spread > 1e-12 * np.maximum(1.0, tally["sum_square"])]
    return {**found, "r2": float(told.mean()) if len(told) else float("nan")}


def _of_faults(scores: Numbers, faulty: NDArray[np.bool_]) -> Tally:
    """Scores of anomalies have no upper end and may all be small: the histogram is over their logarithm."""
    octaves = np.log2(np.maximum(np.nan_to_num(scores), 2.0**-OCTAVES))
    return {"faults": _histogram((octaves + OCTAVES) / (2 * OCTAVES), faulty)}


def _histogram(shares: Numbers, positive: NDArray[np.bool_]) -> Numbers:
    """How many scores from 0 to 1 fall into each bin: of the negative samples, and of the positive."""
    bins = np.clip((np.nan_to_num(shares, nan=0.0) * BINS).astype(np.int64), 0, BINS - 1)
    each = (np.bincount(bins[~positive], minlength=BINS), np.bincount(bins[positive], minlength=BINS))
    return np.stack(each).astype(np.float64)


def _area(histogram: Numbers) -> float:
    """The share of pairs of a negative and a positive sample in the right order; those of one bin count half."""
    negative, positive = histogram
    below = np.cumsum(negative) - negative
    pairs = negative.sum() * positive.sum()
    return _ratio((positive * (below + 0.5 * negative)).sum(), pairs)


def _macro_f1(tally: Mapping[str, Numbers]) -> float:
    """The mean of 2 hits / (claims + members) over classes that occur, in the samples or in the answers."""
    all_of = tally["claims"] + tally["members"]
    there = all_of > 0
    return float(np.mean(2 * tally["hits"][there] / all_of[there])) if there.any() else float("nan")


def _sigmoid(x: Numbers) -> Numbers:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def _ratio(part: float | Numbers, whole: float | Numbers) -> float:
    return float(part) / float(whole) if float(whole) else float("nan")


def _number(value: float | np.generic) -> Numbers:
    return np.asarray(value, np.float64)
