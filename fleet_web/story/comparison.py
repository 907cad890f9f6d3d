"""Several jobs or folders over each other: what they have in common, and what each came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.jobs.goal import goal_of, target_of
from coordinator.results.task_figures import figure_in, figure_shown
from sojourn.errors import ConfigError
from sojourn.figures import clock_of
from sojourn.protocol.figure_names import SHARES, called

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.jobs.goal import Goal
    from coordinator.results.task_figures import TaskFigures
    from fleet_web.story.job_story import JobStory

MOST_RUNS = 8
"""More curves than this nobody can tell apart."""


@dataclass(frozen=True)
class RunComparison:
    """Runs that learn the same kind of thing, by the names that they are shown under."""

    runs: Mapping[str, JobStory]

    @property
    def task(self) -> TaskFigures:
        """What all of them learn."""
        return next(iter(self.runs.values())).task

    @property
    def figures(self) -> list[str]:
        """The figures that at least one has, the main one first."""
        there = {figure for story in self.runs.values() for figure in story.figures}
        return [name for name in self.task.names if name in there]

    def goal(self, text: str) -> Goal | None:
        """What a person typed as a target; of shares also in percent, as they are shown."""
        text = text.strip()
        if not text:
            return None
        wanted = target_of(text.removesuffix("%").strip())
        main = self.task.main
        if isinstance(wanted, float) and main in SHARES and (text.endswith("%") or wanted > 1):
            wanted /= 100
        return goal_of(wanted, self.task.kind, "the target") if wanted is not None else None

    def rows(self, goal: Goal | None = None) -> list[dict[str, str]]:
        """A line for each run: last, best, and what it took to reach the target."""
        return [self._row(name, story, goal) for name, story in self.runs.items()]

    def _row(self, name: str, story: JobStory, goal: Goal | None) -> dict[str, str]:
        main, history = self.task.main, story.history
        best = self.task.best(history)
        row = {
            "run": name,
            "strategy": story.view.strategy,
            "rounds": str(history[-1].round),
            f"{called(main)} last": figure_shown(main, figure_in(history[-1], main)),
            "best": _best(figure_shown(main, figure_in(best, main)), best.round),
            "time": clock_of(story.clocks[-1]),
            "MB": f"{story.megabytes:,.1f}",
        }
        return row | (_reached(story, goal) if goal else {})


def _best(figure: str, number: int) -> str:
    return figure if figure == "-" else f"{figure} (round {number})"


def _reached(story: JobStory, goal: Goal) -> dict[str, str]:
    """What it took to reach the target: rounds, time and bytes."""
    at = next((place for place, it in enumerate(story.history) if goal.reached(it)), None)
    if at is None:
        return {"rounds to target": "not reached", "time to target": "-", "MB to target": "-"}
    return {
        "rounds to target": str(story.history[at].round),
        "time to target": clock_of(story.clocks[at]),
        "MB to target": f"{story.across('bytes')[at]:,.1f}",
    }


def compared(runs: Mapping[str, JobStory]) -> RunComparison:
    """The runs over each other; refused with the reason where that would say nothing."""
    if not runs:
        raise ConfigError("choose at least one run")
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs are too many to tell apart: choose at most {MOST_RUNS}")
    kinds = {name: story.task.kind for name, story in runs.items()}
    if len(set(kinds.values())) > 1:
        told = "; ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise ConfigError(f"these learn different things, and no figure is common to them ({told}): choose one kind")
    empty = _empty(runs)
    if empty:
        raise ConfigError(f"not one round is finished of {', '.join(empty)}: there is nothing to compare yet")
    return RunComparison(runs)


def _empty(runs: Mapping[str, JobStory]) -> Sequence[str]:
    return [name for name, story in runs.items() if not story.history]
