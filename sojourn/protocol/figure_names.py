"""The figures that say how good a model is, by name: which a task has, which stands for it, and when it is better."""

from __future__ import annotations

from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
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
"""The figure that stands for a model of each kind, where only one is told."""
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
"""Whether more of a figure is better."""
FIGURES: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "loss", "macro_f1", "auc"),
    "multilabel": ("macro_f1", "loss", "auc", "accuracy"),
    "regression": ("rmse", "mae", "r2", "loss"),
    "reconstruction": ("loss", "anomaly_auc", "rmse"),
    "forecast": ("rmse", "mae", "r2", "loss"),
    "tokens": ("perplexity", "accuracy", "loss"),
}
"""The figures of each kind, the main one first. `auc` of a classification only where there are two classes;
`anomaly_auc` only where a test set says which of its samples are faulty."""
SHARES = frozenset({"accuracy", "macro_f1", "auc", "anomaly_auc"})
"""Figures from 0 to 1, which people read as percentages."""
OWN, MERGED = "own_", "merged_"
"""How the names of figures begin that belong to other models than the job's: see `belongs_to`."""
VOTE, MEAN, TOGETHER = "vote_", "mean_", "together_"
"""The same of the members' models at a finisher: their vote, their plain mean, and what they say together."""
VOTERS = "voters"
"""How many models vote."""
OWN_DEVICES = "own_devices"
"""How many devices have told how good their own models are."""
VALIDATION = "validation"
"""The share of right answers of a device's own model on the samples that choose between models (`own_validation`)."""
SPREAD = "_spread"
"""How the name of a figure's standard deviation over devices ends."""
_MODELS = {
    OWN: "each device's own model, on its own test part",
    MERGED: "the last round's merged model with each device's own BatchNorm, on its own test part",
    VOTE: "the vote of the devices' models, on the job's test set",
    MEAN: "the plain mean of the devices' models, on the job's test set",
    TOGETHER: "the mean of what the devices' models answer, on the job's test set",
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
    """The model that a figure belongs to, for people; None: the job's own one, on the job's test set."""
    found = next((text for begins, text in _MODELS.items() if name.startswith(begins)), None)
    if found and name == OWN + VALIDATION:
        return found.replace("test part", "validation part")
    return found


def plain_name(name: str) -> str:
    """A figure's name without the model that it belongs to: `own_accuracy` and its spread are accuracies."""
    begins = next((each for each in _MODELS if name.startswith(each)), "")
    plain = name.removeprefix(begins).removesuffix(SPREAD)
    return "accuracy" if begins and plain == VALIDATION else plain


def own_names(kind: Kind) -> tuple[str, ...]:
    """The figures of the devices' own models that tables have, where a job comes to some."""
    main = OWN + MAIN[kind]
    return (main, main + SPREAD, OWN_DEVICES, MERGED + MAIN[kind], OWN + VALIDATION)


def finisher_names(kind: Kind) -> tuple[str, ...]:
    """The figures of the members' models that tables have, where a finisher made another of them."""
    return (VOTE + MAIN[kind], VOTERS, TOGETHER + MAIN[kind], MEAN + MAIN[kind])


def better(name: str, figure: float, than: float) -> bool:
    """Whether one value of a figure is better than another; NaN is worse than everything."""
    if isnan(than):
        return not isnan(figure)
    return figure > than if DIRECTIONS[plain_name(name)] == "higher" else figure < than


def worsening(name: str, figure: float, before: float) -> float:
    """By which share of what it was a figure has become worse; below 0 where it is better, NaN where one is unknown."""
    if isnan(figure) or isnan(before) or name not in DIRECTIONS:
        return nan
    lost = before - figure if DIRECTIONS[name] == "higher" else figure - before
    if not lost:
        return 0.0
    return lost / abs(before) if before else inf if lost > 0 else -inf


def called(name: str) -> str:
    """A figure's name for people: `own accuracy` is the mean over the devices' own models."""
    if name == OWN_DEVICES:
        return "own models"
    begins = next((each for each in _MODELS if name.startswith(each)), "")
    if not begins:
        return _WORDS.get(name, name)
    plain, ends = name.removeprefix(begins).removesuffix(SPREAD), " spread" if name.endswith(SPREAD) else ""
    return f"{begins.removesuffix('_')} {_WORDS.get(plain, plain)}{ends}"


def figure_text(name: str, value: float) -> str:
    """A figure for people: shares as percentages, others with four digits; a dash where there is none."""
    if not isfinite(value):
        return "-"
    return f"{100 * value:.1f} %" if plain_name(name) in SHARES else significant(value)


def significant(value: float) -> str:
    """A number with four significant digits, and no more than it has."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3e}"
