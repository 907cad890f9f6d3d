"""Evaluation metrics, computed from sums that add over batches and devices.

The sum of two tallies is the tally of both batches, so no step needs all samples at once. An AUC is computed from a
fixed histogram, so it is exact up to the width of a bin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sojourn.protocol.metric_names import TASK_METRICS
from sojourn.protocol.task import Kind

Numbers = NDArray[np.float64]

BINS = 4096
"""The number of bins of the score histogram for an AUC."""
OCTAVES = 32
"""The histogram of anomaly scores covers 2**-OCTAVES to 2**OCTAVES, with a resolution of about 1 %."""
Tally = dict[str, "Numbers"]
"""Sums by name."""


def added(one: Mapping[str, Numbers], other: Mapping[str, Numbers]) -> Tally:
    """Return the sum of two tallies."""
    names = dict.fromkeys((*one, *other))
    return {name: np.asarray(one.get(name, 0.0) + other.get(name, 0.0)) for name in names}


def tallied(  # outputs, targets, losses and known faults
    kind: Kind,
    outputs: NDArray[np.floating],
    targets: NDArray[np.generic] | None,
    losses: NDArray[np.floating],
    faulty: NDArray[np.bool_] | None = None,
) -> Tally:
    """Return the tally of one batch.

    outputs: logits of a classification (B, C), multilabel (B, C) or tokens (B, L, V); otherwise values like the
    targets. targets: class numbers (B,) or (B, L), otherwise values; for a reconstruction, the samples themselves.
    losses: one for each sample. faulty: for a reconstruction, which samples are known anomalies.
    """
    wide = outputs.astype(np.float64)
    tally: Tally = {"samples": _number(len(losses)), "loss": _number(np.sum(losses, dtype=np.float64))}
    if targets is None:
        return tally
    match kind:
        case "classification":
            return tally | _class_tally(wide, targets.astype(np.int64))
        case "multilabel":
            return tally | _label_tally(wide, targets.astype(np.float64) > 0.5)
        case "tokens":
            right = wide.argmax(axis=-1) == targets
            return tally | {"right": _number(right.sum()), "answers": _number(right.size)}
        case "reconstruction":
            normal = ~faulty if faulty is not None else np.ones(len(losses), np.bool_)
            found = _value_tally(wide[normal], targets[normal].astype(np.float64))
            kept = {name: found[name] for name in ("count", "square")}
            mean = {"samples": _number(normal.sum()), "loss": _number(np.sum(losses[normal], dtype=np.float64))}
            return mean | kept | ({} if faulty is None else _anomaly_tally(losses.astype(np.float64), faulty))
        case _:
            return tally | _value_tally(wide, targets.astype(np.float64))


def metrics(kind: Kind, tally: Mapping[str, Numbers]) -> dict[str, float]:
    """Return the metrics of a tally, the main one first; NaN if there is no data for a metric."""
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
        found |= _error_metrics(kind, tally)
    if "faults" in tally:
        found["anomaly_auc"] = _area(tally["faults"])
    return {name: found[name] for name in TASK_METRICS[kind] if name in found}


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities over the last axis."""
    wide = logits.astype(np.float64)
    raised = np.exp(wide - wide.max(-1, keepdims=True, initial=-np.inf))
    found: NDArray[np.float64] = raised / raised.sum(-1, keepdims=True)
    return found


def sigmoid(logits: NDArray[np.floating]) -> Numbers:
    """Return an independent probability for each logit."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits.astype(np.float64))))


def cross_entropies(logits: NDArray[np.floating], y: NDArray[np.integer]) -> Numbers:
    """Return the cross-entropy of each sample with its class."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y])


def _class_tally(logits: Numbers, y: NDArray[np.int64]) -> Tally:
    classes, guess = logits.shape[1], logits.argmax(axis=1)
    found = {
        "hits": np.bincount(y[guess == y], minlength=classes).astype(np.float64),
        "claims": np.bincount(guess, minlength=classes).astype(np.float64),
        "members": np.bincount(y, minlength=classes).astype(np.float64),
    }
    return found if classes != 2 else {**found, "scores": _histogram(sigmoid(logits[:, 1] - logits[:, 0]), y == 1)}


def _label_tally(logits: Numbers, y: NDArray[np.bool_]) -> Tally:
    guess, scores = logits > 0, sigmoid(logits)
    return {
        "hits": (guess & y).sum(axis=0).astype(np.float64),
        "claims": guess.sum(axis=0).astype(np.float64),
        "members": y.sum(axis=0).astype(np.float64),
        "scores": np.stack([_histogram(scores[:, at], y[:, at]) for at in range(y.shape[1])]),
    }


def _value_tally(answers: Numbers, targets: Numbers) -> Tally:
    """Sum by column, the last axis: the quantities of a regression, or the channels of a series."""
    columns = targets.shape[-1] if targets.ndim > 1 else 1
    error, true = (answers - targets).reshape(-1, columns), targets.reshape(-1, columns)
    return {
        "count": np.full(columns, float(len(true))),
        "absolute": np.abs(error).sum(axis=0),
        "square": np.square(error).sum(axis=0),
        "sum": true.sum(axis=0),
        "sum_square": np.square(true).sum(axis=0),
    }


def _error_metrics(kind: Kind, tally: Mapping[str, Numbers]) -> dict[str, float]:
    count, square = tally["count"], tally["square"]
    found = {"rmse": float(np.sqrt(_ratio(square.sum(), count.sum())))}
    if kind == "reconstruction":
        return found
    found["mae"] = _ratio(tally["absolute"].sum(), count.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = tally["sum_square"] - np.square(tally["sum"]) / count
        each = 1.0 - square / spread
    # A constant column has no variance to explain.
    explained = each[spread > 1e-12 * np.maximum(1.0, tally["sum_square"])]
    return {**found, "r2": float(explained.mean()) if len(explained) else float("nan")}


def _anomaly_tally(scores: Numbers, faulty: NDArray[np.bool_]) -> Tally:
    """Histogram the logarithm of the scores, because anomaly scores are unbounded and may all be small."""
    octaves = np.log2(np.maximum(np.nan_to_num(scores), 2.0**-OCTAVES))
    return {"faults": _histogram((octaves + OCTAVES) / (2 * OCTAVES), faulty)}


def _histogram(shares: Numbers, positive: NDArray[np.bool_]) -> Numbers:
    """Count the scores from 0 to 1 in each bin, for negative and for positive samples."""
    bins = np.clip((np.nan_to_num(shares, nan=0.0) * BINS).astype(np.int64), 0, BINS - 1)
    each = (np.bincount(bins[~positive], minlength=BINS), np.bincount(bins[positive], minlength=BINS))
    return np.stack(each).astype(np.float64)


def _area(histogram: Numbers) -> float:
    """Return the share of negative-positive pairs in the right order; pairs in the same bin count half."""
    negative, positive = histogram
    below = np.cumsum(negative) - negative
    pairs = negative.sum() * positive.sum()
    return _ratio((positive * (below + 0.5 * negative)).sum(), pairs)


def _macro_f1(tally: Mapping[str, Numbers]) -> float:
    """Return the mean of 2 hits / (claims + members) over classes that occur in the samples or the predictions."""
    all_of = tally["claims"] + tally["members"]
    occurs = all_of > 0
    return float(np.mean(2 * tally["hits"][occurs] / all_of[occurs])) if occurs.any() else float("nan")


def _ratio(part: float | Numbers, whole: float | Numbers) -> float:
    return float(part) / float(whole) if float(whole) else float("nan")


def _number(value: float | np.generic) -> Numbers:
    return np.asarray(value, np.float64)
