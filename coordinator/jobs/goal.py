"""The goal that ends a job early: the value that a metric must reach, in the direction in which it improves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isfinite
from typing import NamedTuple

from sojourn.errors import ConfigError
from sojourn.protocol.metric_names import DIRECTIONS, MAIN, SHARES, TASK_METRICS
from sojourn.protocol.task import Kind
from sojourn.protocol.wire import RoundReport

_TEXT = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")
_SIGNS = {"lower": "<=", "higher": ">="}


class Goal(NamedTuple):
    """A metric, and the value that it must reach."""

    metric: str
    value: float

    def reached(self, report: RoundReport) -> bool:
        """Whether the model of a round reaches the goal; false if the metric was not measured."""
        return self.met(metric_of(report, self.metric))

    def met(self, found: float) -> bool:
        """Whether a value of the metric reaches the goal."""
        return found >= self.value if DIRECTIONS[self.metric] == "higher" else found <= self.value

    @property
    def text(self) -> str:
        """The goal as it is written in a job file."""
        return f"{self.metric} {_SIGNS[DIRECTIONS[self.metric]]} {self.value!r}"

    def __str__(self) -> str:
        if self.metric == "accuracy":
            return f"accuracy {self.value:.2%}"
        return f"{self.metric} {_SIGNS[DIRECTIONS[self.metric]]} {self.value:g}"


def goal_of(target: float | str, kind: Kind, where: str) -> Goal:
    """Return the goal in `target`: a plain number is for the main metric of the kind. ConfigError explains the form."""
    if isinstance(target, str):
        metric, value = _parsed(target, kind, where)
    else:
        metric, value = MAIN[kind], target
    if not isfinite(value) or (metric in SHARES and not 0 < value <= 1):
        allowed = "above 0 and at most 1" if metric in SHARES else "a number"
        raise ConfigError(f"{where}: target: {metric} must be {allowed}, not {value:g}")
    return Goal(metric, value)


def target_of(text: str | None) -> float | str | None:
    """Parse a target from the command line: a number, or a metric with a number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def metric_of(report: RoundReport, name: str) -> float:
    """Return a metric of a round's model; NaN if it was not measured."""
    if name in ("accuracy", "loss"):
        return float(getattr(report, name))
    return report.metrics.get(name, float("nan"))


def _parsed(text: str, kind: Kind, where: str) -> tuple[str, float]:
    known = ", ".join(f'"{name} {_SIGNS[DIRECTIONS[name]]} ..."' for name in TASK_METRICS[kind])
    found = _TEXT.fullmatch(text)
    if not found or found[1] not in TASK_METRICS[kind]:
        raise ConfigError(f"{where}: target = {text[:100]!r}: for the kind {kind!r} write one of {known}")
    metric, sign, number = found.groups()
    if sign != _SIGNS[DIRECTIONS[metric]]:
        raise ConfigError(
            f"{where}: target = {text[:100]!r}: for {metric}, {DIRECTIONS[metric]} is better: write "
            f'"{metric} {_SIGNS[DIRECTIONS[metric]]} {number}"'
        )
    try:
        return metric, float(number)
    except ValueError:
        raise ConfigError(f"{where}: target = {text[:100]!r}: {number!r} is not a number") from None


def best_round(history: Iterable[RoundReport], kind: Kind = "classification") -> int | None:
    """Return the first round with the best main metric; None if it was never measured."""
    name = MAIN[kind]
    sign = 1.0 if DIRECTIONS[name] == "higher" else -1.0
    measured = [it for it in history if isfinite(metric_of(it, name))]
    return max(measured, key=lambda it: sign * metric_of(it, name)).round if measured else None
