"""Names of metrics: which a task has, which is its main metric, and whether more is better."""

from __future__ import annotations

from math import inf, isfinite, isnan, nan
from typing import Literal

from sojourn.protocol.task import Kind

Direction = Literal["higher", "lower"]
MAIN: dict[Kind, str] = {
    "classification": "accuracy",
    "multilabel": "macro_f1",
    "regression": "rmse",
    "reconstruction": "loss",
    "forecast": "rmse",
    "tokens": "perplexity",
}
"""The main metric of each kind of task."""
DIRECTIONS: dict[str, Direction] = {
    "accuracy": "higher",
    "macro_f1": "higher",
    "auc": "higher",
    "r2": "higher",
    "anomaly_auc": "higher",
    "loss": "lower",
    "mae": "lower",
    "rmse": "lower",
    "perplexity": "lower",
}
"""Whether higher or lower values of a metric are better."""
TASK_METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "loss", "macro_f1", "auc"),
    "multilabel": ("macro_f1", "loss", "auc", "accuracy"),
    "regression": ("rmse", "mae", "r2", "loss"),
    "reconstruction": ("loss", "anomaly_auc", "rmse"),
    "forecast": ("rmse", "mae", "r2", "loss"),
    "tokens": ("perplexity", "accuracy", "loss"),
}
"""The metrics of each kind, the main one first. A classification has `auc` only with two classes, and a
reconstruction has `anomaly_auc` only if a test set marks the faulty samples."""
SHARES = frozenset({"accuracy", "macro_f1", "auc", "anomaly_auc"})
"""Metrics from 0 to 1, which are shown as percentages."""
OWN, MERGED = "own_", "merged_"
"""Prefixes of metrics that belong to other models than the job's: see `belongs_to`."""
VOTE, MEAN, TOGETHER = "vote_", "mean_", "together_"
"""Prefixes for the members' models at a finisher: their vote, their plain mean, and their combined prediction."""
VOTERS = "voters"
"""The number of models that vote."""
OWN_DEVICES = "own_devices"
"""The number of devices that reported metrics of personal models."""
VALIDATION = "validation"
"""The accuracy of a device's own model on the samples that select between models (`own_validation`)."""
SPREAD = "_spread"
"""Suffix of a metric's standard deviation over devices."""
_MODELS = {
    OWN: "each device's own model, on its own test part",
    MERGED: "the last round's merged model with each device's own BatchNorm, on its own test part",
    VOTE: "the vote of the devices' models, on the job's test set",
    MEAN: "the plain mean of the devices' models, on the job's test set",
    TOGETHER: "the mean of the devices' models' predictions, on the job's test set",
}
_WORDS = {
    "macro_f1": "macro F1",
    "auc": "AUC",
    "anomaly_auc": "fault AUC",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
}


def belongs_to(name: str) -> str | None:
    """Return a description of the model that a metric belongs to; None for the job's own model on its test set."""
    found = next((text for begins, text in _MODELS.items() if name.startswith(begins)), None)
    if found and name == OWN + VALIDATION:
        return found.replace("test part", "validation part")
    return found


def plain_name(name: str) -> str:
    """Return a metric's name without its model: `own_accuracy` and its spread are accuracies."""
    begins = next((each for each in _MODELS if name.startswith(each)), "")
    plain = name.removeprefix(begins).removesuffix(SPREAD)
    return "accuracy" if begins and plain == VALIDATION else plain


def own_names(kind: Kind) -> tuple[str, ...]:
    """Return the metrics of the devices' own models that tables show, if a job has any."""
    main = OWN + MAIN[kind]
    return (main, main + SPREAD, OWN_DEVICES, MERGED + MAIN[kind], OWN + VALIDATION)


def finisher_names(kind: Kind) -> tuple[str, ...]:
    """Return the metrics of the members' models that tables show, if a finisher made another model of them."""
    return (VOTE + MAIN[kind], VOTERS, TOGETHER + MAIN[kind], MEAN + MAIN[kind])


def better(name: str, metric: float, than: float) -> bool:
    """Return whether one value of a metric is better than another; NaN is worse than everything."""
    if isnan(than):
        return not isnan(metric)
    return metric > than if DIRECTIONS[plain_name(name)] == "higher" else metric < than


def worsening(name: str, metric: float, before: float) -> float:
    """Return the relative worsening of a metric; below 0 if it improved, NaN if a value is unknown."""
    if isnan(metric) or isnan(before) or name not in DIRECTIONS:
        return nan
    lost = before - metric if DIRECTIONS[name] == "higher" else metric - before
    if not lost:
        return 0.0
    return lost / abs(before) if before else inf if lost > 0 else -inf


def called(name: str) -> str:
    """Return a metric's name for people: `own accuracy` is the mean over the devices' own models."""
    if name == OWN_DEVICES:
        return "own models"
    begins = next((each for each in _MODELS if name.startswith(each)), "")
    if not begins:
        return _WORDS.get(name, name)
    plain, ends = name.removeprefix(begins).removesuffix(SPREAD), " spread" if name.endswith(SPREAD) else ""
    return f"{begins.removesuffix('_')} {_WORDS.get(plain, plain)}{ends}"


def metric_text(name: str, value: float) -> str:
    """Format a metric: shares as percentages, others with four digits; a dash if it is unknown."""
    if not isfinite(value):
        return "-"
    return f"{100 * value:.1f} %" if plain_name(name) in SHARES else significant(value)


def significant(value: float) -> str:
    """Format a number with up to four significant digits."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
