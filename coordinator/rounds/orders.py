"""What a tour's devices are asked to do, and what bounds it: as it is ordered, and as it is judged when it is home."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from sojourn.parts import EdgeCloud, Elmy, Sgd
from sojourn.protocol.wire import Task

if TYPE_CHECKING:
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
    job, strategy = state.settings, state.strategy
    training, objective, estimator = strategy.training, strategy.objective, None
    if state.phase == "estimate":
        estimator, objective = strategy.estimator, Sgd()
        epochs = getattr(estimator, "epochs", 0)
        training = msgspec.structs.replace(training, epochs=epochs) if epochs else training
    elif isinstance(objective, Elmy) and _has_learnt(state, tour):  # only a model that is new is warmed up
        objective = msgspec.structs.replace(objective, warmup=0, start="received")
    return Task(state.phase, training, objective, job.encoding, job.threads, estimator)


def _has_learnt(state: JobState, tour: TourPlan) -> bool:
    """Whether the model that a tour departs with has been at a device before."""
    earlier_legs = tour.leg and any("model" in toured.vectors for toured in state.arrived.values())
    return bool(earlier_legs) or any(report.visits for report in state.history)


def waves_of(state: JobState) -> int:
    """How many waves a tour is led in, each merged at its edge server; 0: one visit after another."""
    schedule = state.strategy.schedule
    return schedule.edge_merges if state.phase == "train" and isinstance(schedule, EdgeCloud) else 0


def bounds_of(state: JobState, tour: TourPlan) -> TourBounds:
    """What bounds a tour besides its policy and gate.

    How much the loss may grow at a device that is alone on its tour is left to the coordinator: nobody trains further
    on its model, and only there it stands beside what the others of its round made of the same one.
    """
    known = [samples for samples in state.samples.values() if samples > 0]
    usual_samples = int(median(known)) if known else None
    return bounds_beside(state, usual_samples, UNSEEN if judged_together(state, tour) else rises_of(state))


def bounds_beside(state: JobState, usual_samples: int | None, rises: Rises) -> TourBounds:
    """What bounds a tour where devices have so many samples, and the loss grows so much."""
    job = state.settings
    return job.gate.bounds(job.tours.visit_deadline, usual_samples, rises)


def judged_together(state: JobState, tour: TourPlan) -> bool:
    """Whether a tour's device is alone on it, and others are alone on theirs."""
    if state.phase != "train" or waves_of(state):
        return False
    alone = [each for each in state.tours if each.leg == tour.leg and len(each.hops) == 1]
    return len(tour.hops) == 1 and len(alone) >= COMPANY


def rises_of(state: JobState) -> Rises:
    """What the rounds before tell of how the loss grows."""
    if not isinstance(state.rises, msgspec.UnsetType):
        return state.rises
    return UNSEEN if state.history else (1.0, math.inf)  # an earlier version began the job: one round tells


def tour_deadline(state: JobState, tour: TourPlan) -> float:
    """The seconds that a tour may take in all: its visits, each with its deadline, and one more to begin and to end.

    Tours of a leg that share devices wait for each other: then all their visits count.
    """
    policy, leg = state.settings.tours, [each for each in state.tours if each.leg == tour.leg]
    devices = [device for each in leg for device in {*each.hops}]
    waiting = leg if len({*devices}) < len(devices) else [tour]
    tries = 1 + policy.retries if policy.on_lost_visit == "retry" else 1
    visits = sum(len(each.hops) * max(1, waves_of(state)) * tries + len(each.spares) for each in waiting)
    return (visits + 1) * policy.visit_deadline
