"""Answers as programs and people read them, in the task's terms: classes, labels, values by name, scores, tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.model.answers import label_shares, scores_of, shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sojourn.model.answers import Answer
    from sojourn.protocol.release import Card
    from sojourn.protocol.task import TaskSpec

TOP = 3
"""How many classes or tokens are told of a row, unless told."""


class AnomalyScore(NamedTuple):
    """How unlike the samples that were learnt one is, and whether that is beyond what this device calls normal."""

    score: float
    threshold: float
    anomalous: bool


def anomalies(answer: Answer, threshold: float) -> list[AnomalyScore]:
    """The scores of a batch. One that is no number is an anomaly: nothing is known of it that would be normal."""
    found = [float(score) for score in scores_of(answer)]
    return [AnomalyScore(score, threshold, not score <= threshold) for score in found]


def plain_answers(card: Card, answer: Answer, threshold: float, top: int = TOP) -> list[dict[str, Any]]:
    """What a release says of each row: plain values by name, ready for JSON.

    classification: `class`, `probability`, and the `top` likeliest. multilabel: `labels` and all `scores`. regression
    and forecast: `values` by name, of a forecast one for each step to come. reconstruction: `score`, `threshold`,
    `anomalous`. tokens: the next `token`, its `probability`, and the `top` likeliest.
    """
    match card.learns.kind:
        case "classification":
            return [_likeliest(row, card.classes, "class", top) for row in shares(answer.outputs)]
        case "multilabel":
            return [_labels(row, card.classes) for row in label_shares(answer.outputs)]
        case "reconstruction":
            return [each._asdict() for each in anomalies(answer, threshold)]
        case "tokens":
            return [_likeliest(row, None, "token", top) for row in shares(answer.outputs[:, -1])]
        case _:
            names = value_names(card.learns)
            rows = answer.outputs.astype(np.float64)
            return [{"values": dict(zip(names, _by_name(row), strict=True))} for row in rows]


def value_names(task: TaskSpec) -> tuple[str, ...]:
    """What the values are called: as the job said, else `value`, or `value-1` and so on."""
    count = task.output[-1] if task.output else 1
    if len(task.names) == count:
        return task.names
    return ("value",) if count == 1 else tuple(f"value-{at + 1}" for at in range(count))


def line_of(answer: dict[str, Any], width: int = 0) -> str:
    """The same for people, in a line, with names of classes as wide as told."""
    if "score" in answer:
        word = "ANOMALY" if answer["anomalous"] else "normal"
        return f"score {answer['score']:.4g}   threshold {answer['threshold']:.4g}   {word}"
    if "values" in answer:
        return "   ".join(f"{name} {_values(value)}" for name, value in answer["values"].items())
    if "scores" in answer:
        ranked = sorted(answer["scores"].items(), key=lambda item: -item[1])
        return "   ".join(f"{'+' if share > 0.5 else '-'} {name} {100 * share:.1f} %" for name, share in ranked)
    if "class" in answer:
        return "   ".join(f"{each['class']:<{width}} {100 * each['probability']:5.1f} %" for each in answer["top"])
    return "   ".join(f"{each['token']} {100 * each['probability']:.1f} %" for each in answer["top"])


def _values(value: float | list[float]) -> str:
    return " ".join(f"{each:.4g}" for each in value) if isinstance(value, list) else f"{value:.4g}"


def _by_name(row: NDArray[np.float64]) -> list[Any]:
    """The value of each quantity, or all its values: quantities stand on the last axis."""
    found: list[Any] = row.tolist() if row.ndim < 2 else np.moveaxis(row, -1, 0).reshape(row.shape[-1], -1).tolist()
    return found


def _likeliest(row: NDArray[np.float64], names: Sequence[str] | None, what: str, top: int) -> dict[str, Any]:
    best = row.argsort(kind="stable")[::-1][:top]
    ranked = [{what: names[int(at)] if names else int(at), "probability": float(row[at])} for at in best]
    return {**ranked[0], "top": ranked}


def _labels(row: NDArray[np.float64], names: Sequence[str]) -> dict[str, Any]:
    found = dict(zip(names, row.tolist(), strict=True))
    return {"labels": [name for name, share in found.items() if share > 0.5], "scores": found}
