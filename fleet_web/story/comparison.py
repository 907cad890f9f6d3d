"""Compares several jobs or folders: their common metrics, and the results of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.jobs.goal import Goal, goal_of, target_of
from coordinator.results.job_metrics import TaskMetrics, metric_in, metric_shown
from sojourn.errors import ConfigError
from sojourn.protocol.metric_names import SHARES, called
from sojourn.text import clock_of

if TYPE_CHECKING:
    from fleet_web.story.job_story import JobStory

MAX_RUNS = 8
"""Maximum number of runs; more curves would be indistinguishable."""


@dataclass(frozen=True)
class RunComparison:
    """Comparable runs, by displayed name."""

    runs: Mapping[str, JobStory]

    @property
    def task(self) -> TaskMetrics:
        """The task of all runs."""
        return next(iter(self.runs.values())).task

    @property
    def metrics(self) -> list[str]:
        """The metrics that at least one run has, the main one first."""
        there = {metric for story in self.runs.values() for metric in story.metrics}
        return [name for name in self.task.names if name in there]

    def goal(self, text: str) -> Goal | None:
        """Parse a target typed by a user; shares may also be given in percent, as displayed."""
        text = text.strip()
        if not text:
            return None
        wanted = target_of(text.removesuffix("%").strip())
        main = self.task.main
        if isinstance(wanted, float) and main in SHARES and (text.endswith("%") or wanted > 1):
            wanted /= 100
        return goal_of(wanted, self.task.kind, "the target") if wanted is not None else None

    def rows(self, goal: Goal | None = None) -> list[dict[str, str]]:
        """Return a row per run: last value, best value, and the cost to reach the target."""
        return [self._row(name, story, goal) for name, story in self.runs.items()]

    def _row(self, name: str, story: JobStory, goal: Goal | None) -> dict[str, str]:
        main, history = self.task.main, story.history
        best = self.task.best(history)
        row = {
            "run": name,
            "strategy": story.view.strategy,
            "rounds": str(history[-1].round),
            f"{called(main)} last": metric_shown(main, metric_in(history[-1], main)),
            "best": _best(metric_shown(main, metric_in(best, main)), best.round),
            "time": clock_of(story.clocks[-1]),
            "MB": f"{story.megabytes:,.1f}",
        }
        return row | (_reached(story, goal) if goal else {})


def _best(text: str, number: int) -> str:
    return text if text == "-" else f"{text} (round {number})"


def _reached(story: JobStory, goal: Goal) -> dict[str, str]:
    """Return the cost to reach the target: rounds, time and bytes."""
    at = next((place for place, it in enumerate(story.history) if goal.reached(it)), None)
    if at is None:
        return {"rounds to target": "not reached", "time to target": "-", "MB to target": "-"}
    return {
        "rounds to target": str(story.history[at].round),
        "time to target": clock_of(story.clocks[at]),
        "MB to target": f"{story.across('bytes')[at]:,.1f}",
    }


def compared(runs: Mapping[str, JobStory]) -> RunComparison:
    """Return the comparison; raise ConfigError if the runs are not comparable."""
    if not runs:
        raise ConfigError("choose at least one run")
    if len(runs) > MAX_RUNS:
        raise ConfigError(f"{len(runs)} runs are too many: choose at most {MAX_RUNS}")
    kinds = {name: story.task.kind for name, story in runs.items()}
    if len(set(kinds.values())) > 1:
        described = "; ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ConfigError(
            f"these runs have different tasks without a common metric ({described}): choose runs of one kind"
        )
    empty = _empty(runs)
    if empty:
        raise ConfigError(f"{', '.join(empty)}: no finished round to compare yet")
    return RunComparison(runs)


def _empty(runs: Mapping[str, JobStory]) -> Sequence[str]:
    return [name for name, story in runs.items() if not story.history]
