"""The metrics of a job or a simulation and of its arrangements: names, directions, and texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, get_args

from coordinator.jobs.goal import metric_of
from coordinator.strategies import STRATEGIES
from coordinator.strategies.strategy import FORMS
from sojourn.protocol.metric_names import (
    DIRECTIONS,
    MAIN,
    OWN,
    OWN_DEVICES,
    SHARES,
    TASK_METRICS,
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
from sojourn.protocol.wire import JobView, RoundReport
from sojourn.text import number, percent

if TYPE_CHECKING:
    from coordinator.results.folder import Rows


MEASURES = {
    "vts": "VTS",
    "intra_cs": "Intra-CS",
    "inter_cs": "Inter-CS",
    "balance": "balance",
    "covered": "classes",
    "cpd": "CPD",
}
MEANING = {
    "vts": "virtual target similarity: how balanced the classes of each set are. 1 is best: every set is balanced.",
    "intra_cs": "how similar the devices inside a set are. Low is good: the data of each set is diverse.",
    "inter_cs": "how similar the sets are to each other. High is good: the tours train on similar data.",
    "balance": "the samples of the rarest class of a set, divided by those of its most frequent one. 1 is best.",
    "covered": "the average number of classes of which a set has samples.",
    "cpd": "FedGSP's class probability distance between sets. Low is good: the sets are similar.",
}
"""One line about each measure of an arrangement."""


KINDS: tuple[Kind, ...] = get_args(Kind)
COUNTS = (OWN_DEVICES, VOTERS)
"""The metrics that count models."""
PLAIN = ("accuracy", "loss")
"""The metrics in every table of rounds."""


@dataclass(frozen=True)
class TaskMetrics:
    """The metrics of a task, and the main one.

    own: whether each device ends with its own model, whose metrics are listed in addition to the job's. shared: a
    description of the job's one model in that case. finished: whether a finisher makes it, with metrics of the devices'
    models together.
    """

    kind: Kind = "classification"
    own: bool = False
    shared: str = ""
    finished: bool = False

    @property
    def main(self) -> str:
        """The main metric of a model."""
        return MAIN[self.kind]

    @property
    def names(self) -> tuple[str, ...]:
        """All metrics, the main one first, then those of the devices' own models or of all models together."""
        others = (*(own_names(self.kind) if self.own else ()), *(finisher_names(self.kind) if self.finished else ()))
        return (*TASK_METRICS[self.kind], *others)

    @property
    def more(self) -> tuple[str, ...]:
        """The metrics of a table of rounds in addition to those of every table."""
        return tuple(name for name in self.names if name not in PLAIN)

    def measured(self, rows: Iterable[Mapping[str, str] | RoundReport]) -> list[str]:
        """Return the metrics that at least one round has."""
        there = list(rows)
        names = dict.fromkeys((*self.names, *own_names(self.kind), *finisher_names(self.kind)))
        return [name for name in names if any(isfinite(metric_in(row, name)) for row in there)]

    def best(self, rows: Sequence[Mapping[str, str] | RoundReport]) -> Any:
        """Return the first round with the best main metric; the first round if it was never measured."""
        found = rows[0]
        for row in rows[1:]:
            if better(self.main, metric_in(row, self.main), metric_in(found, self.main)):
                found = row
        return found

    def text(self, row: Mapping[str, str] | RoundReport, name: str | None = None) -> str:
        """Return a metric of a round as text, by default the main one."""
        name = name or self.main
        return metric_shown(name, metric_in(row, name))


def metric_shown(name: str, value: float) -> str:
    """Return a metric for a table; a loss has a fixed number of digits."""
    if plain_name(name) in SHARES:
        return percent(value)
    if name in COUNTS and isfinite(value):
        return f"{value:.0f}"
    if name == "loss":
        return number(value)
    return significant(value) if isfinite(value) else "-"


def spread_shown(name: str, values: Sequence[float]) -> str:
    """Return the mean of a metric over several runs, with its standard deviation."""
    from statistics import fmean, stdev  # noqa: PLC0415  # only for tables of several runs

    known = [value for value in values if isfinite(value)]
    if len(known) < 2:
        return metric_shown(name, known[0] if known else nan)
    mean, apart = fmean(known), stdev(known)
    if plain_name(name) in SHARES:
        return f"{100 * mean:.1f} ± {100 * apart:.1f} %"
    return f"{mean:.3g} ± {apart:.1g}"


def metric_in(row: Mapping[str, str] | RoundReport, name: str) -> float:
    """Return a metric of a round, from a table or a report; NaN if it was not measured."""
    if not isinstance(row, RoundReport):
        return float(row.get(name) or nan)
    return metric_of(row, name)


def task_of(view: JobView) -> TaskMetrics:
    """Return the metrics of a job's task from its view."""
    return TaskMetrics((view.times.task if view.times else None) or "classification")


def metric_of_view(view: JobView) -> str:
    """Return the main metric of a job's newest round; if devices have their own models, their mean."""
    task = task_of(view)
    if isfinite(own := view.metrics.get(OWN + task.main, nan)):
        return f"{metric_shown(OWN + task.main, own)} own"
    if isfinite(vote := view.metrics.get(VOTE + task.main, nan)):
        return f"{metric_shown(VOTE + task.main, vote)} vote"
    if task.kind == "classification":
        return percent(view.accuracy)
    return metric_shown(task.main, view.metrics.get(task.main, nan))


def task_in(config: Mapping[str, Any]) -> TaskMetrics:
    """Return the metrics of the task in a job file."""
    kind_name = name_in(config, "task", "kind")
    objective, finisher = _part_in(config, "objective"), _part_in(config, "finisher")
    return TaskMetrics(
        next((kind for kind in KINDS if kind == kind_name), "classification"),
        own=getattr(objective, "outcome", "") == "own models",
        shared=getattr(objective, "shared", ""),
        finished=finisher is not None and shows_members(finisher),
    )


def name_in(config: Mapping[str, Any], part: str, key: str = "name") -> str | None:
    """Return the name of a part in a job file, given as a table with this key or as the name alone; None if missing."""
    given = config.get(part)
    name = given.get(key) if isinstance(given, dict) else given
    return name if isinstance(name, str) else None


def _part_in(config: Mapping[str, Any], kind: str) -> Any:
    """Return the part that a job file or its strategy names, or its class; None for a custom one."""
    name = name_in(config, kind)
    strategy = STRATEGIES.get(str(config.get("strategy", "")))
    if name is None and strategy:
        return getattr(strategy.strategy, kind)
    return FORMS[kind].get(str(name))


def shows_members(finisher: Any) -> bool:
    """Whether a finisher's rounds have metrics of the members' models."""
    return bool(finisher.compares or finisher.outcome == "vote")


def belonging(names: Iterable[str]) -> dict[str, str]:
    """Return which model each metric belongs to; empty if all are of the job's one model."""
    return {called(name): text for name in names if (text := belongs_to(name)) and name not in COUNTS}


def axis_words(name: str) -> str:
    """Return the label of a plot's axis."""
    better_by = "" if name in SHARES else f" ({DIRECTIONS[name]} is better)"
    return f"{called(name)} on the test set{better_by}"


def of_rows(rows: Rows, name: str) -> list[float]:
    """Return a metric of all rounds."""
    return [metric_in(row, name) for row in rows]
