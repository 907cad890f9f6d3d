"""The figures of a job or a simulation in its tables: by name, by direction, and as people read them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, get_args

from coordinator.strategies import STRATEGIES
from coordinator.strategies.strategy import FORMS
from sojourn.figures import number, percent
from sojourn.protocol.figure_names import (
    DIRECTIONS,
    FIGURES,
    MAIN,
    OWN,
    OWN_DEVICES,
    SHARES,
    VOTE,
    VOTERS,
    belongs_to,
    better,
    called,
    finisher_names,
    own_names,
    plain_name,
    significant,
)
from sojourn.protocol.task import Kind
from sojourn.protocol.wire import RoundReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import msgspec

    from coordinator.results.folder import Rows
    from sojourn.protocol.wire import JobView

KINDS: tuple[Kind, ...] = get_args(Kind)
COUNTS = (OWN_DEVICES, VOTERS)
"""Figures that count models."""
PLAIN = ("accuracy", "loss")
"""What every table of rounds has."""


@dataclass(frozen=True)
class TaskFigures:
    """Which figures a task has, and which of them stands for it.

    own: whether each device ends with a model of its own, whose figures stand beside those of the job's. shared: what
    the job's one model then is. finished: whether a finisher makes it, beside which stand figures of the devices'
    models together.
    """

    kind: Kind = "classification"
    own: bool = False
    shared: str = ""
    finished: bool = False

    @property
    def main(self) -> str:
        """The figure that stands for a model."""
        return MAIN[self.kind]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, the main one first; after them those of the devices' own models, or of these together."""
        others = (*(own_names(self.kind) if self.own else ()), *(finisher_names(self.kind) if self.finished else ()))
        return (*FIGURES[self.kind], *others)

    @property
    def more(self) -> tuple[str, ...]:
        """Those that a table of rounds has besides what every one has."""
        return tuple(name for name in self.names if name not in PLAIN)

    def measured(self, rows: Iterable[Mapping[str, str] | RoundReport]) -> list[str]:
        """Those of which at least one round has a number."""
        there = list(rows)
        names = dict.fromkeys((*self.names, *own_names(self.kind), *finisher_names(self.kind)))
        return [name for name in names if any(isfinite(figure_in(row, name)) for row in there)]

    def best(self, rows: Sequence[Mapping[str, str] | RoundReport]) -> Any:
        """The round whose model was the best, the first of several; where none was measured the first."""
        found = rows[0]
        for row in rows[1:]:
            if better(self.main, figure_in(row, self.main), figure_in(found, self.main)):
                found = row
        return found

    def text(self, row: Mapping[str, str] | RoundReport, name: str | None = None) -> str:
        """A figure of a round, the main one unless told."""
        name = name or self.main
        return figure_shown(name, figure_in(row, name))


def figure_shown(name: str, value: float) -> str:
    """A figure in a table, where a loss has as many digits as it always had."""
    if plain_name(name) in SHARES:
        return percent(value)
    if name in COUNTS and isfinite(value):
        return f"{value:.0f}"
    if name == "loss":
        return number(value)
    return significant(value) if isfinite(value) else "-"


def spread_shown(name: str, values: Sequence[float]) -> str:
    """The mean of a figure over several runs, with its deviation."""
    from statistics import fmean, stdev  # noqa: PLC0415  # only for tables of several runs

    known = [value for value in values if isfinite(value)]
    if len(known) < 2:
        return figure_shown(name, known[0] if known else nan)
    mean, apart = fmean(known), stdev(known)
    if plain_name(name) in SHARES:
        return f"{100 * mean:.1f} ± {100 * apart:.1f} %"
    return f"{mean:.3g} ± {apart:.1g}"


def figure_in(row: Mapping[str, str] | RoundReport, name: str) -> float:
    """A figure of a round, in a table or as it was reported; NaN where it was not measured."""
    if not isinstance(row, RoundReport):
        return float(row.get(name) or nan)
    return float(getattr(row, name)) if name in PLAIN else float((row.figures or {}).get(name, nan))


def task_of(view: JobView) -> TaskFigures:
    """What a job learns, as its view says it."""
    return TaskFigures((view.times.task if view.times else None) or "classification")


def figure_of_view(view: JobView) -> str:
    """The main figure of a job's newest round; where devices have models of their own, the mean of theirs."""
    task = task_of(view)
    if isfinite(own := view.figures.get(OWN + task.main, nan)):
        return f"{figure_shown(OWN + task.main, own)} own"
    if isfinite(vote := view.figures.get(VOTE + task.main, nan)):
        return f"{figure_shown(VOTE + task.main, vote)} vote"
    if task.kind == "classification":
        return percent(view.accuracy)
    return figure_shown(task.main, view.figures.get(task.main, nan))


def task_in(config: Mapping[str, Any]) -> TaskFigures:
    """What a job file says that is learnt."""
    named = name_in(config, "task", "kind")
    objective = _objective_in(config)
    return TaskFigures(
        next((kind for kind in KINDS if kind == named), "classification"),
        own=getattr(objective, "outcome", "") == "own models",
        shared=getattr(objective, "shared", ""),
        finished=_is_finished(config),
    )


def name_in(config: Mapping[str, Any], part: str, key: str = "name") -> str | None:
    """The name of a part in a job file, where it may be a table with this key or the name alone; None without one."""
    given = config.get(part)
    name = given.get(key) if isinstance(given, dict) else given
    return name if isinstance(name, str) else None


def _objective_in(config: Mapping[str, Any]) -> type[msgspec.Struct] | None:
    """The kind of objective that a job file names, or its strategy does; None for one of a user's own."""
    name = name_in(config, "objective")
    strategy = STRATEGIES.get(str(config.get("strategy", "")))
    if name is None and strategy:
        return type(strategy.strategy.objective)
    return FORMS["objective"].get(str(name))


def _is_finished(config: Mapping[str, Any]) -> bool:
    """Whether a job file's strategy has a finisher of which tables tell."""
    name = name_in(config, "finisher")
    strategy = STRATEGIES.get(str(config.get("strategy", "")))
    known = FORMS["finisher"].get(str(name))
    if name is None and strategy:
        return shows_members(strategy.strategy.finisher)
    return known is not None and shows_members(known)


def shows_members(finisher: Any) -> bool:
    """Whether a finisher's rounds have figures of the members' models."""
    return bool(finisher.compares or finisher.outcome == "vote")


def belonging(names: Iterable[str]) -> dict[str, str]:
    """Of figures whose names say so, the model that each belongs to; nothing where all are of the job's one model."""
    return {called(name): text for name in names if (text := belongs_to(name)) and name not in COUNTS}


def axis_words(name: str) -> str:
    """What stands beside the axis of a picture."""
    better_by = "" if name in SHARES else f" ({DIRECTIONS[name]} is better)"
    return f"{called(name)} on the test set{better_by}"


def of_rows(rows: Rows, name: str) -> list[float]:
    """A figure of all rounds."""
    return [figure_in(row, name) for row in rows]
