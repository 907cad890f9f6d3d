"""A job as its page tells it: what it is, how it stands, its rounds, its tours, who took part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan
from typing import TYPE_CHECKING

from coordinator.console.round_clocks import clocked
from coordinator.console.what_failed import by_line
from coordinator.records import ENDED
from coordinator.results.measures import MEASURES
from coordinator.results.task_figures import figure_in, task_of
from fleet_web.story.travel import RoundTravel, present_tour

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from coordinator.console.following import JobProgress
    from coordinator.results.task_figures import TaskFigures
    from sojourn.protocol.wire import JobView, RoundReport

    Across = Literal["round", "time", "bytes"]

ACROSS: dict[Across, str] = {"round": "round", "time": "time", "bytes": "MB over MQTT"}
"""By what a figure can be drawn, and what that is called."""


@dataclass(frozen=True)
class JobStory:
    """A job that runs, waits or is over; `left`: the seconds that it will still take, where that can be told."""

    progress: JobProgress
    left: float | None = None

    @property
    def view(self) -> JobView:
        """The job as the coordinator sees it now."""
        return self.progress.view

    @property
    def history(self) -> Sequence[RoundReport]:
        """Every round that is done."""
        return self.progress.history

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.view.status in ENDED

    @cached_property
    def task(self) -> TaskFigures:
        """What is learnt."""
        return task_of(self.view)

    @cached_property
    def clocks(self) -> list[float]:
        """The seconds from the job's beginning to the end of each round."""
        return [clock for _, clock in clocked(self.progress)]

    @cached_property
    def figures(self) -> list[str]:
        """The figures that were measured, the main one first."""
        return self.task.measured(self.history)

    @cached_property
    def measures(self) -> list[str]:
        """The measures of arrangements that at least one round has."""
        return [name for name in MEASURES if any(isfinite(it.quality.get(name, nan)) for it in self.history)]

    def across(self, by: Across) -> list[float]:
        """Where each round stands: its number, seconds since the beginning, or megabytes so far."""
        if by == "round":
            return [float(it.round) for it in self.history]
        if by == "time":
            return self.clocks
        sums, total = [], 0.0
        for it in self.history:
            total += it.traffic / 1e6
            sums.append(total)
        return sums

    def course(self, figure: str) -> list[float]:
        """A figure, or a measure of the arrangement, of every round; NaN where it was not measured."""
        if figure in MEASURES:
            return [it.quality.get(figure, nan) for it in self.history]
        return [figure_in(it, figure) for it in self.history]

    @property
    def megabytes(self) -> float:
        """All that went over MQTT."""
        return sum(it.traffic for it in self.history) / 1e6

    @property
    def under_way(self) -> RoundTravel | None:
        """The tours that are out now; None where none is."""
        if self.over or not self.view.tours:
            return None
        tours = tuple(present_tour(tour) for tour in self.view.tours)
        unknown = any(not hop.told for tour in tours for hop in tour.hops)
        gap = "This coordinator is older than 0.9.0: it tells how many visits were lost, and not which." * unknown
        return RoundTravel(self.view.round + 1, tours, under_way=True, gap=gap)

    def happened(self) -> list[str]:
        """What people should know of the rounds, each thing once with the rounds it is of; and what is so now."""
        lines = [f"{line} ({_rounds(rounds)})" for line, rounds in by_line(self.history).items()]
        return [*self.view.notes, *reversed(lines)]


def _rounds(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"round {first}"
    whole = last - first + 1 == len(numbers)
    return f"rounds {first} to {last}" if whole else f"{len(numbers)} rounds from {first} to {last}"
