"""Jobs and tours as operators see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.goal import figure_of
from coordinator.machine.paging import first_page
from sojourn.protocol.figure_names import MAIN
from sojourn.protocol.limits import MOST_SECONDS
from sojourn.protocol.wire import JobModels, JobNews, JobTimes, JobView, TourView

if TYPE_CHECKING:
    from coordinator.machine.tours import RoundTours
    from coordinator.records import TourPlan
    from coordinator.state import JobState

HISTORY = 100
"""Rounds in one answer, if they fit; who wants more asks again from where this ended."""
TOURS = 100
HOPS = 50
"""Hops of a tour that are named."""
NAMES = 50
"""At most this many devices are named that every round took, or none."""
KEPT = 1000
"""At most this many rounds are named whose models can be had: the newest."""


def short_view(state: JobState, devices: int, detail: str, date: float) -> JobView:
    """A job in a list; `date` is now."""
    job, told = state.settings, state.told_rounds
    return JobView(
        state.name,
        job.strategy,
        job.model.name,
        state.status,
        detail,
        told,
        job.all_rounds,
        state.phase,
        state.accuracy(told),
        devices,
        times=JobTimes(
            _moment(state.submitted),
            _moment(state.ended),
            _took(state, date),
            job.task.kind if job.task.kind != "classification" else msgspec.UNSET,
            _figures(state, told),
        ),
    )


def whole_view(short: JobView, state: JobState, tours: RoundTours, since: int) -> JobView:
    """A job by itself: with its tours, its history from a round on, and the rounds whose models can be had."""
    told = state.told_rounds
    return msgspec.structs.replace(
        short,
        tours=first_page(_tour(state, tour, tours) for tour in state.tours[:TOURS]),
        history=first_page(state.history[since : min(since + HISTORY, told)]),
        models=JobModels(tuple(number for number in sorted(state.models)[-KEPT:] if number <= told), state.best),
        news=_news(state),
    )


def _news(state: JobState) -> JobNews:
    """What people should know since the newest round."""
    notes = first_page((*(state.unestimated or ()), *(state.notices if state.tours else ())))
    return JobNews(notes, tuple(state.always[:NAMES]), tuple(state.never[:NAMES]))


def _figures(state: JobState, told: int) -> dict[str, float] | msgspec.UnsetType:
    """What a list tells of a round: its figures, of a task the main one among them, also where that is the loss."""
    if not 0 < told <= len(state.history):
        return msgspec.UNSET
    report, kind = state.history[told - 1], state.settings.task.kind
    if kind == "classification" or not report.figures:
        return report.figures
    return {MAIN[kind]: figure_of(report, MAIN[kind]), **report.figures}


def _moment(at: float | msgspec.UnsetType) -> float | None:
    return at if isinstance(at, float) else None


def _took(state: JobState, date: float) -> float | None:
    """The seconds from a job's turn to its end, or so far; None before it had a turn."""
    if isinstance(state.started, float):
        return min((state.worked or 0.0) + max(0.0, date - state.started), MOST_SECONDS)
    return min(state.worked, MOST_SECONDS) if isinstance(state.worked, float) else None


def _tour(state: JobState, tour: TourPlan, tours: RoundTours) -> TourView:
    done, seen = tour.number in state.arrived or tour.number in state.given_up, tours.progress.get(tour.number)
    hop, device, step, steps, lost = (
        (seen.hop, seen.device, seen.step, seen.steps, seen.lost) if seen else (0, None, 0, 0, 0)
    )
    hop = len(tour.hops) if done else hop
    told = tours.told.get(tour.number, msgspec.UNSET)
    return TourView(tour.number, tour.site, tour.hops[:HOPS], hop, device, step, steps, lost, done, told)
