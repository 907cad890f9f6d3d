"""The tasks and bounds of a tour's devices, both when it is sent and when its result is checked."""

from __future__ import annotations

import math
from functools import cached_property
from statistics import median
from typing import get_args

import msgspec

from coordinator.job_state import JobState
from coordinator.jobs.settings import JobSettings
from coordinator.records import TourPlan
from coordinator.rounds.schedules import is_alone
from sojourn.parts import Common, EdgeCloud, Elmy, NoEstimator, Phase, PhasedRing, Sgd, TourBounds
from sojourn.protocol.wire import Task

Rises = tuple[float, float]
"""The factors by which visits increased the loss on the exemplars: their median and median deviation."""
UNLIMITED_RISES: Rises = (1e6, math.inf)
"""Any increase of the loss is accepted: the usual one is unknown, or checked elsewhere."""
MIN_RESULTS = 3
"""Minimum number of results of the same model that define what is usual."""


def task_of(state: JobState, tour: TourPlan) -> Task:
    """Return the task of each device of a tour."""
    if state.phase == "estimate":
        return estimation_task(state.settings)
    return training_task(state.settings, is_new=not _has_trained(state, tour), phase=_phase(state, tour))


def all_tasks(job: JobSettings) -> tuple[Task, ...]:
    """Return all tasks of a job, which its mandate must cover; `task_of` returns one of them."""
    phases = get_args(Phase) if isinstance(job.parts().objective, Common) else (None,)
    found = [training_task(job, is_new=new, phase=phase) for new in (True, False) for phase in phases]
    asks = not isinstance(job.parts().estimator, NoEstimator)
    found += [estimation_task(job)] if asks else []
    return tuple({msgspec.msgpack.encode(task): task for task in found}.values())


def training_task(job: JobSettings, *, is_new: bool, phase: Phase | None = None) -> Task:
    """Return a device's task in a round; `is_new`: no device has had the model yet; `phase`: of MetaFed."""
    strategy = job.parts()
    objective = strategy.objective
    if isinstance(objective, Elmy) and not is_new:  # only a new model is warmed up
        objective = msgspec.structs.replace(objective, warmup=0, start="received")
    if isinstance(objective, Common) and phase:
        objective = msgspec.structs.replace(objective, phase=phase)
    return Task("train", strategy.training, objective, job.encoding, job.threads)


def estimation_task(job: JobSettings) -> Task:
    """Return a device's task before it first takes part."""
    strategy = job.parts()
    training, epochs = strategy.training, getattr(strategy.estimator, "epochs", 0)
    training = msgspec.structs.replace(training, epochs=epochs) if epochs else training
    return Task("estimate", training, Sgd(), job.encoding, job.threads, strategy.estimator)


def _has_trained(state: JobState, tour: TourPlan) -> bool:
    """Return whether a device has already trained the model that a tour departs with."""
    return _came_home(state, tour) or any(report.visits for report in state.history)


def _came_home(state: JobState, tour: TourPlan) -> bool:
    """Return whether an earlier leg of the same round brought back a model."""
    return tour.leg > 0 and any("model" in toured.vectors for toured in state.arrived.values())


def _phase(state: JobState, tour: TourPlan) -> Phase | None:
    """Return the phase of a MetaFed job; None for all others.

    If no ring has brought back a model, there is none to learn from: then a ring begins, and devices train alone.
    """
    schedule = state.strategy.schedule
    if not isinstance(schedule, PhasedRing):
        return None
    # The first round is the warm-up, which brings back no model.
    taught = any(report.visits for report in state.history[1:]) or _came_home(state, tour)
    if is_alone(schedule, state.round):
        return "personalise" if state.round > 1 and taught else "warm-up"
    return "accumulate" if taught else "begin"


def waves_of(state: JobState) -> int:
    """Return in how many waves a tour runs, each merged at its edge server; 0: one visit after another."""
    schedule = state.strategy.schedule
    return schedule.edge_merges if state.phase == "train" and isinstance(schedule, EdgeCloud) else 0


def peer_bounds(state: JobState, usual_samples: int | None, rises: Rises) -> TourBounds:
    """Return the bounds of a tour, given the usual number of samples and the usual increase of the loss."""
    job = state.settings
    return job.gate.bounds(job.tours.visit_deadline, usual_samples, rises)


def rises_of(state: JobState) -> Rises:
    """Return the usual increase of the loss in earlier rounds."""
    if state.rises is not None:
        return state.rises
    return UNLIMITED_RISES if state.history else (1.0, math.inf)


class Leg:
    """The tours that are out at the same time, and the limits of each, derived from all of them.

    Common values are computed once, since a round may have thousands of tours.
    """

    def __init__(self, state: JobState, number: int | None = None) -> None:
        """The job's current leg, or the one of this number."""
        self._state = state
        self._tours = [tour for tour in state.tours if tour.leg == (state.leg if number is None else number)]

    @cached_property
    def usual_samples(self) -> int | None:
        """The usual number of samples of a device; None if it is unknown."""
        known = [samples for samples in self._state.samples.values() if samples > 0]
        return int(median(known)) if known else None

    @cached_property
    def _comparable(self) -> bool:
        """Whether enough devices are alone on their tours to judge each by comparison with the others."""
        if self._state.phase != "train" or waves_of(self._state):
            return False
        return sum(len(tour.hops) == 1 for tour in self._tours) >= MIN_RESULTS

    @cached_property
    def _share_devices(self) -> bool:
        visited = [device for tour in self._tours for device in {*tour.hops}]
        return len({*visited}) < len(visited)

    @cached_property
    def _all_visits(self) -> int:
        return sum(self._visits(tour) for tour in self._tours)

    def _visits(self, tour: TourPlan) -> int:
        """Return the maximum number of visits of a tour, including retries and spares."""
        policy = self._state.settings.tours
        tries = 1 + policy.retries if policy.on_lost_visit == "retry" else 1
        return len(tour.hops) * max(1, waves_of(self._state)) * tries + len(tour.spares)

    def judges_together(self, tour: TourPlan) -> bool:
        """Return whether a tour's device is alone on it, and enough others are alone on theirs."""
        return len(tour.hops) == 1 and self._comparable

    def bounds(self, tour: TourPlan) -> TourBounds:
        """Return the bounds of a tour in addition to its policy and gate.

        The coordinator checks the increase of the loss at a device that is alone on its tour: no other device trains
        its model further, and only the coordinator can compare it with the results of the other devices.
        """
        rises = UNLIMITED_RISES if self.judges_together(tour) else rises_of(self._state)
        return peer_bounds(self._state, self.usual_samples, rises)

    def deadline(self, tour: TourPlan) -> float:
        """Return the maximum seconds of a tour: the deadlines of its visits, and one more for start and end.

        Tours that share devices wait for each other: then the visits of all these tours count.
        """
        visits = self._all_visits if self._share_devices else self._visits(tour)
        return (visits + 1) * self._state.settings.tours.visit_deadline
