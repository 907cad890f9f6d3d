"""The page model of a job: its state, rounds, tours and visits, its participating devices, and its failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan
from typing import Literal

from coordinator.console.job_progress import JobProgress, clocked
from coordinator.console.job_status import by_line
from coordinator.records import ENDED
from coordinator.results.job_metrics import MEASURES, TaskMetrics, metric_in, task_of
from coordinator.results.visit_totals import Loss, flagged, losses
from fleet_web.story.tour_history import RoundTravel, past_round, plain_reason, present_tour
from sojourn.protocol.operator_messages import VisitNote
from sojourn.protocol.wire import JobView, RoundReport

Across = Literal["round", "time", "bytes"]


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """How often a device took part. why: the reason of its newest failure, or why it has no visits."""

    device: str
    site: str
    done: int = 0
    failed: int = 0
    why: str = ""


class VisitBook:
    """Visits by round. complete: whether it holds all visits of the job."""

    def __init__(self, newest_first: Iterable[VisitNote] = (), *, complete: bool = True) -> None:
        self.complete = complete
        self._rounds: dict[int, list[VisitNote]] = {}
        self._estimates: list[VisitNote] = []
        for visit in reversed(list(newest_first)):
            self._add(visit)

    def _add(self, visit: VisitNote) -> None:
        if visit.phase == "train":
            self._rounds.setdefault(visit.round, []).append(visit)
        else:
            self._estimates.append(visit)

    def extend(self, newest_first: Sequence[VisitNote]) -> None:
        """Add the visits of newer rounds; rounds that are already known stay unchanged."""
        known = self.newest
        for visit in reversed(newest_first):
            if visit.round > known:
                self._add(visit)

    @property
    def newest(self) -> int:
        """The newest round with known visits."""
        return max(self._rounds, default=0)

    @property
    def rounds(self) -> list[int]:
        """The rounds with known visits."""
        return sorted(self._rounds)

    def travel(self, number: int) -> RoundTravel:
        """Return the tours of a finished round."""
        if number not in self._rounds:
            gap = f"The visits of round {number} are unknown: older visits are dropped, or were never recorded."
            return RoundTravel(number, (), gap=gap)
        return past_round(number, self._rounds[number])

    def losses(self) -> list[Loss]:
        """Return why visits failed, most frequent first."""
        return losses(self._rows())

    def flagged(self) -> list[Loss]:
        """Return which visits the gate would have refused, most frequent reason first."""
        return flagged(self._rows())

    def _rows(self) -> list[dict[str, str]]:
        """Return the visits with a reason or a failure."""
        return [
            {"status": it.status, "reason": it.reason, "device": it.device}
            for visits in (self._estimates, *self._rounds.values())
            for it in visits
            if it.reason or it.status != "done"
        ]

    def shares(self, sites: Mapping[str, str]) -> list[DeviceShare]:
        """Return each device's share of the visits, most visited first. sites: all devices and their sites."""
        done: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        why: dict[str, str] = {}
        where = dict(sites)
        for visits in self._rounds.values():
            for it in visits:
                where.setdefault(it.device, it.site)
                if it.status == "done":
                    done[it.device] += 1
                else:
                    failed[it.device] += 1
                    why[it.device] = f"{it.status}: {plain_reason(it.reason)}" if it.reason else it.status
        never = {
            it.device: f"declined the estimation: {plain_reason(it.reason)}"
            for it in self._estimates
            if it.status != "done"
        }
        shares = [
            DeviceShare(device, site, done[device], failed[device], why.get(device) or _never(device, done, never))
            for device, site in where.items()
        ]
        return sorted(shares, key=lambda it: (-it.done, -it.failed, it.device))


def _never(device: str, done: Mapping[str, int], declined: Mapping[str, str]) -> str:
    """Return why a device was never visited, as far as that is known."""
    return "" if done[device] else declined.get(device, "no round selected it")


ACROSS: dict[Across, str] = {"round": "round", "time": "time", "bytes": "MB over MQTT"}
"""The x axes a metric can be drawn over, and their labels."""


@dataclass(frozen=True)
class JobStory:
    """A job in any state. left: the estimated remaining seconds, if known."""

    progress: JobProgress
    left: float | None = None

    @property
    def view(self) -> JobView:
        """The current state of the job, as reported by the coordinator."""
        return self.progress.view

    @property
    def history(self) -> Sequence[RoundReport]:
        """Every finished round."""
        return self.progress.history

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.view.status in ENDED

    @cached_property
    def task(self) -> TaskMetrics:
        """The learning task."""
        return task_of(self.view)

    @cached_property
    def clocks(self) -> list[float]:
        """The seconds from the job's start to the end of each round."""
        return [clock for _, clock in clocked(self.progress)]

    @cached_property
    def metrics(self) -> list[str]:
        """The measured metrics, the main one first."""
        return self.task.measured(self.history)

    @cached_property
    def measures(self) -> list[str]:
        """The arrangement measures that at least one round has."""
        return [name for name in MEASURES if any(isfinite(it.quality.get(name, nan)) for it in self.history)]

    def across(self, by: Across) -> list[float]:
        """Return the x position of each round: its number, seconds since the start, or megabytes so far."""
        if by == "round":
            return [float(it.round) for it in self.history]
        if by == "time":
            return self.clocks
        sums, total = [], 0.0
        for it in self.history:
            total += it.traffic / 1e6
            sums.append(total)
        return sums

    def course(self, metric: str) -> list[float]:
        """Return a metric or an arrangement measure for every round; NaN if it was not measured."""
        if metric in MEASURES:
            return [it.quality.get(metric, nan) for it in self.history]
        return [metric_in(it, metric) for it in self.history]

    @property
    def megabytes(self) -> float:
        """The total MQTT traffic in megabytes."""
        return sum(it.traffic for it in self.history) / 1e6

    @property
    def under_way(self) -> RoundTravel | None:
        """The current tours; None if there are none."""
        if self.over or not self.view.tours:
            return None
        tours = tuple(present_tour(tour) for tour in self.view.tours)
        return RoundTravel(self.view.round + 1, tours, under_way=True)

    def notices(self) -> list[str]:
        """Return the rounds' notices, each once with the rounds it applies to, and the current ones."""
        lines = [f"{line} ({_rounds(rounds)})" for line, rounds in by_line(self.history).items()]
        return [*self.view.notes, *reversed(lines)]


def _rounds(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"round {first}"
    whole = last - first + 1 == len(numbers)
    return f"rounds {first} to {last}" if whole else f"{len(numbers)} rounds from {first} to {last}"
