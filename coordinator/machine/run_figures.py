"""What a coordinator tells Prometheus of its jobs: rounds, how good the models are, and how visits ended.

A job is called a run there, since `job` is Prometheus' own word. Only some are told apart: who runs a job every hour
must not have a thousand of them in every scrape.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, get_args

import msgspec

from coordinator.jobs.goal import figure_of
from coordinator.records import ENDED, DevicesEstimated, JobRecord, RoundClosed, RoundFailed
from sojourn.metrics.catalogue import (
    JOBS,
    ROUND_SECONDS,
    ROUNDS,
    RUN_ACCURACY,
    RUN_FIGURE,
    RUN_LOSS,
    RUN_PLANNED,
    RUN_PROGRESS,
    RUN_ROUNDS,
    RUN_STATUS,
    RUN_TOURS,
    VISIT_SECONDS,
    VISITS,
)
from sojourn.metrics.reading import Durations, VisitCounts
from sojourn.protocol.figure_names import FIGURES
from sojourn.protocol.visit_words import OUTCOMES, reason_word
from sojourn.protocol.wire import JobStatus

if TYPE_CHECKING:
    from coordinator.fleet_records import VisitOutcome
    from coordinator.machine.coordinator import Coordinator
    from coordinator.machine.tours import RoundTours
    from coordinator.state import JobState
    from sojourn.metrics.reading import Reading

RUNS = 5
"""Jobs that are told by their names: those that are not over, then those that ended last."""
STATUSES: tuple[JobStatus, ...] = get_args(JobStatus)


class RunFigures:
    """Jobs, rounds and visits."""

    def __init__(self, coordinator: Coordinator, tours: RoundTours) -> None:
        self._coordinator = coordinator
        self._tours = tours
        self._rounds = Durations()
        self._rounds_closed = 0
        self._visits = VisitCounts()
        self._moves = 0
        self._progress: dict[str, float] = {}
        """When each job that is under way last got on, as far as that was seen."""

    def recorded(self, record: object, now: float) -> None:
        """A record was written: a job got on, and with a round its visits are known."""
        if isinstance(record, JobRecord):
            self._progress[record.job] = now
        if isinstance(record, RoundClosed):
            self._rounds_closed += 1
            self._rounds.add(record.report.seconds)
        if isinstance(record, RoundClosed | RoundFailed | DevicesEstimated):
            for each in record.visited or ():
                self._count(each)

    def _count(self, visit: VisitOutcome) -> None:
        took = visit.seconds if visit.status == "done" else None
        self._visits.add(visit.status, reason_word(visit.status, visit.reason), took)

    def read(self, into: Reading, now: float) -> None:
        """Put what is known now."""
        jobs = list(self._coordinator.state.jobs.values())
        statuses = Counter(state.status for state in jobs)
        for status in STATUSES:
            into.put(JOBS, statuses[status], status)
        into.put(ROUNDS, self._rounds_closed)
        into.put(ROUND_SECONDS, self._rounds.seen())
        self._visits.put(into, VISITS, VISIT_SECONDS, OUTCOMES)
        for state in told_apart(jobs):
            self._read_run(state, into)
        self._read_progress(jobs, into, now)

    def _read_run(self, state: JobState, into: Reading) -> None:
        name, told, settings = state.name, state.told_rounds, state.settings
        into.put_one_of(RUN_STATUS, STATUSES, state.status, name)
        into.put(RUN_ROUNDS, told, name)
        into.put(RUN_PLANNED, settings.all_rounds, name)
        into.put(RUN_TOURS, len(state.tours) - len(state.arrived) - len(state.given_up), name)
        if not 0 < told <= len(state.history):
            return
        report = state.history[told - 1]
        for metric, value in ((RUN_ACCURACY, report.accuracy), (RUN_LOSS, report.loss)):
            if isfinite(value):
                into.put(metric, value, name)
        for figure in FIGURES[settings.task.kind]:
            if isfinite(value := figure_of(report, figure)):
                into.put(RUN_FIGURE, value, name, figure)

    def _read_progress(self, jobs: list[JobState], into: Reading, now: float) -> None:
        """When jobs last got on: by their records, or since a tour of the one whose turn it is went on."""
        moved, self._moves = self._tours.moves != self._moves, self._tours.moves
        open_ = [state for state in jobs if state.status not in (*ENDED, "queued")]
        self._progress = {state.name: self._progress.get(state.name, now) for state in open_}
        for state in open_:
            if moved and state.tours:
                self._progress[state.name] = now
        for state in told_apart(open_):
            into.put(RUN_PROGRESS, self._progress[state.name], state.name)


def told_apart(jobs: list[JobState]) -> list[JobState]:
    """The jobs that are told by their names."""
    unfinished = [state for state in jobs if state.status not in ENDED][:RUNS]
    over = sorted((state for state in jobs if state.status in ENDED), key=_ended, reverse=True)
    return [*unfinished, *over[: RUNS - len(unfinished)]]


def _ended(state: JobState) -> float:
    return 0.0 if isinstance(state.ended, msgspec.UnsetType) else state.ended
