"""What a tour's devices are asked to do, and what bounds it: as it is ordered, and as it is judged when it is home."""

from __future__ import annotations

import math
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, get_args

import msgspec

from coordinator.rounds.schedules import is_alone
from sojourn.parts import Common, EdgeCloud, Elmy, NoEstimator, Phase, PhasedRing, Sgd
from sojourn.protocol.wire import Task

if TYPE_CHECKING:
    from coordinator.jobs.settings import JobSettings
    from coordinator.records import TourPlan
    from coordinator.state import JobState
    from sojourn.parts import TourBounds

Rises = tuple[float, float]
"""By which factor visits made the loss on the exemplars grow: the median, and the median deviation from it."""
UNSEEN: Rises = (1e6, math.inf)
"""Every loss may grow: what is usual is not known, or is looked at elsewhere."""
COMPANY = 3
"""So many results of the same model tell what is usual among them."""


def task_of(state: JobState, tour: TourPlan) -> Task:
    """What each device of a tour is asked to do."""
    if state.phase == "estimate":
        return estimation_task(state.settings)
    return training_task(state.settings, is_new=not _has_learnt(state, tour), phase=_phase(state, tour))


def all_tasks(job: JobSettings) -> tuple[Task, ...]:
    """All that devices may ever be asked for a job: `task_of` gives one of these, and a mandate holds for them."""
    phases = get_args(Phase) if isinstance(job.parts().objective, Common) else (None,)
    found = [training_task(job, is_new=new, phase=phase) for new in (True, False) for phase in phases]
    asks = not isinstance(job.parts().estimator, NoEstimator)
    found += [estimation_task(job)] if asks else []
    return tuple({msgspec.msgpack.encode(task): task for task in found}.values())


def training_task(job: JobSettings, *, is_new: bool, phase: Phase | None = None) -> Task:
    """What a device does in a round; `is_new`: with a model that no device has had yet; `phase`: of MetaFed."""
    strategy = job.parts()
    objective = strategy.objective
    if isinstance(objective, Elmy) and not is_new:  # only a model that is new is warmed up
        objective = msgspec.structs.replace(objective, warmup=0, start="received")
    if isinstance(objective, Common) and phase:
        objective = msgspec.structs.replace(objective, phase=phase)
    return Task("train", strategy.training, objective, job.encoding, job.threads)


def estimation_task(job: JobSettings) -> Task:
    """What a device does before it first takes part."""
    strategy = job.parts()
    training, epochs = strategy.training, getattr(strategy.estimator, "epochs", 0)
    training = msgspec.structs.replace(training, epochs=epochs) if epochs else training
    return Task("estimate", training, Sgd(), job.encoding, job.threads, strategy.estimator)


def _has_learnt(state: JobState, tour: TourPlan) -> bool:
    """Whether the model that a tour departs with has been at a device before."""
    return _came_home(state, tour) or any(report.visits for report in state.history)


def _came_home(state: JobState, tour: TourPlan) -> bool:
    """Whether an earlier leg of the same round brought a model home."""
    return tour.leg > 0 and any("model" in toured.vectors for toured in state.arrived.values())


def _phase(state: JobState, tour: TourPlan) -> Phase | None:
    """Where a job of MetaFed is; None for all others.

    A ring that has brought nothing home has no model to learn from: then a ring begins, and devices train alone.
    """
    schedule = state.strategy.schedule
    if not isinstance(schedule, PhasedRing):
        return None
    # Its first round is the warm-up, of which no model comes home.
    taught = any(report.visits for report in state.history[1:]) or _came_home(state, tour)
    if is_alone(schedule, state.round):
        return "personalise" if state.round > 1 and taught else "warm-up"
    return "accumulate" if taught else "begin"


def waves_of(state: JobState) -> int:
    """How many waves a tour is led in, each merged at its edge server; 0: one visit after another."""
    schedule = state.strategy.schedule
    return schedule.edge_merges if state.phase == "train" and isinstance(schedule, EdgeCloud) else 0


def bounds_beside(state: JobState, usual_samples: int | None, rises: Rises) -> TourBounds:
    """What bounds a tour where devices have so many samples, and the loss grows so much."""
    job = state.settings
    return job.gate.bounds(job.tours.visit_deadline, usual_samples, rises)


def rises_of(state: JobState) -> Rises:
    """What the rounds before tell of how the loss grows."""
    if not isinstance(state.rises, msgspec.UnsetType):
        return state.rises
    return UNSEEN if state.history else (1.0, math.inf)  # an earlier version began the job: one round tells


class Leg:
    """The tours that are out at the same time, and what each is allowed beside the others.

    What they have in common is worked out once: a round may have thousands of them.
    """

    def __init__(self, state: JobState, number: int | None = None) -> None:
        """The job's present leg, or the one of this number."""
        self._state = state
        self._tours = [tour for tour in state.tours if tour.leg == (state.leg if number is None else number)]

    @cached_property
    def usual_samples(self) -> int | None:
        """How many samples a device has, mostly; None while that is not known."""
        known = [samples for samples in self._state.samples.values() if samples > 0]
        return int(median(known)) if known else None

    @cached_property
    def _have_company(self) -> bool:
        """Whether so many devices are alone on their tours that each can be judged beside the others."""
        if self._state.phase != "train" or waves_of(self._state):
            return False
        return sum(len(tour.hops) == 1 for tour in self._tours) >= COMPANY

    @cached_property
    def _share_devices(self) -> bool:
        visited = [device for tour in self._tours for device in {*tour.hops}]
        return len({*visited}) < len(visited)

    @cached_property
    def _all_visits(self) -> int:
        return sum(self._visits(tour) for tour in self._tours)

    def _visits(self, tour: TourPlan) -> int:
        """How many visits a tour can come to, with those that are tried again and those of spares."""
        policy = self._state.settings.tours
        tries = 1 + policy.retries if policy.on_lost_visit == "retry" else 1
        return len(tour.hops) * max(1, waves_of(self._state)) * tries + len(tour.spares)

    def judges_together(self, tour: TourPlan) -> bool:
        """Whether a tour's device is alone on it, and others are alone on theirs."""
        return len(tour.hops) == 1 and self._have_company

    def bounds(self, tour: TourPlan) -> TourBounds:
        """What bounds a tour besides its policy and gate.

        How much the loss may grow at a device that is alone on its tour is left to the coordinator: nobody trains
        further on its model, and only there it stands beside what the others of its round made of the same one.
        """
        rises = UNSEEN if self.judges_together(tour) else rises_of(self._state)
        return bounds_beside(self._state, self.usual_samples, rises)

    def deadline(self, tour: TourPlan) -> float:
        """The seconds that a tour may take in all: its visits, each with its deadline, and one more to begin and end.

        Tours that share devices wait for each other: then all their visits count.
        """
        visits = self._all_visits if self._share_devices else self._visits(tour)
        return (visits + 1) * self._state.settings.tours.visit_deadline
