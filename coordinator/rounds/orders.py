"""What a tour's devices are asked to do, and what bounds it: as it is ordered, and as it is judged when it is home."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from sojourn.parts import EdgeCloud, Elmy, Sgd
from sojourn.protocol.wire import Task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.records import TourPlan
    from coordinator.state import JobState
    from sojourn.parts import TourBounds

MOST_RISE = 1e6
"""A factor by which every loss may grow."""


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


def bounds_of(state: JobState, told: Iterable[int] = ()) -> TourBounds:
    """What bounds a tour besides its policy and gate; where nobody is known yet, `told` are the devices' samples."""
    job = state.settings
    samples = [each for each in state.samples.values() or told if each > 0]
    unseen = MOST_RISE if state.history else 1.0  # a job that an earlier version began: one round shows what is usual
    rise = unseen if isinstance(state.usual_rise, msgspec.UnsetType) else state.usual_rise
    return job.gate.bounds(job.tours.visit_deadline, int(median(samples)) if samples else None, rise)


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
