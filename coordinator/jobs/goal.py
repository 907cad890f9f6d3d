"""What ends a job early: a figure that its model must reach, by the direction in which the figure gets better."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from sojourn.errors import ConfigError
from sojourn.model.metrics import DIRECTIONS, FIGURES, MAIN, SHARES

if TYPE_CHECKING:
    from sojourn.protocol.task import Kind
    from sojourn.protocol.wire import RoundReport

_TEXT = re.compile(r"\s*([a-z][a-z0-9_]*)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")
_SIGNS = {"lower": "<=", "higher": ">="}


class Goal(NamedTuple):
    """A figure, and the value that it must reach."""

    figure: str
    value: float

    def reached(self, report: RoundReport) -> bool:
        """Whether the model of a round is as good; what was not measured is not."""
        return self.met(figure_of(report, self.figure))

    def met(self, found: float) -> bool:
        """Whether a value of the figure is as good."""
        return found >= self.value if DIRECTIONS[self.figure] == "higher" else found <= self.value

    @property
    def text(self) -> str:
        """The goal as a job file says it."""
        return f"{self.figure} {_SIGNS[DIRECTIONS[self.figure]]} {self.value!r}"

    def __str__(self) -> str:
        if self.figure == "accuracy":
            return f"accuracy {self.value:.2%}"
        return f"{self.figure} {_SIGNS[DIRECTIONS[self.figure]]} {self.value:g}"


def goal_of(target: float | str, kind: Kind, where: str) -> Goal:
    """The goal that `target` says, of a number that of the kind's main figure; ConfigError says how to write one."""
    if isinstance(target, str):
        figure, value = _parsed(target, kind, where)
    else:
        figure, value = MAIN[kind], target
    if not isfinite(value) or (figure in SHARES and not 0 < value <= 1):
        allowed = "above 0 and at most 1" if figure in SHARES else "a number"
        raise ConfigError(f"{where}: target: {figure} must be {allowed}, not {value:g}")
    return Goal(figure, value)


def target_of(text: str | None) -> float | str | None:
    """What a person typed as a target: a number, or a figure with a number."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def figure_of(report: RoundReport, name: str) -> float:
    """One figure of a round's model; NaN where it was not measured."""
    if name in ("accuracy", "loss"):
        return float(getattr(report, name))
    return (report.figures or {}).get(name, float("nan"))


def _parsed(text: str, kind: Kind, where: str) -> tuple[str, float]:
    known = ", ".join(f'"{name} {_SIGNS[DIRECTIONS[name]]} ..."' for name in FIGURES[kind])
    found = _TEXT.fullmatch(text)
    if not found or found[1] not in FIGURES[kind]:
        raise ConfigError(f"{where}: target = {text[:100]!r}: of the kind {kind!r} write one of {known}")
    figure, sign, number = found.groups()
    if sign != _SIGNS[DIRECTIONS[figure]]:
        raise ConfigError(
            f"{where}: target = {text[:100]!r}: {figure} is better the {DIRECTIONS[figure]} it is: write "
            f'"{figure} {_SIGNS[DIRECTIONS[figure]]} {number}"'
        )
    try:
        return figure, float(number)
    except ValueError:
        raise ConfigError(f"{where}: target = {text[:100]!r}: {number!r} is no number") from None
