"""A planned tour as it goes to its site."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.aggregators.contributions import weighting_of
from sojourn.errors import Fault
from sojourn.parts import EdgeCloud, Elmy, Sgd
from sojourn.protocol.messages import Tour
from sojourn.protocol.wire import Task
from sojourn.randomness import derive

if TYPE_CHECKING:
    from coordinator.records import TourPlan
    from coordinator.state import JobState


def tour_message(state: JobState, tour: TourPlan) -> Tour:
    """A planned tour as it goes to its site."""
    if state.kit is None:
        raise Fault(f"{state.name} has tours but was not compiled")
    job, strategy = state.settings, state.strategy
    vectors = {name: state.travelling_vector(held) for name, held in tour.start.items()}
    seed = derive(job.seed, state.phase, state.round if state.phase == "train" else 0)
    if state.phase == "estimate":
        on_device = getattr(strategy.estimator, "where", "server") == "device"
        if state.exemplars and on_device and strategy.estimator.exemplars:
            vectors["exemplars"] = state.exemplars
    elif job.gate.loss_factor is not None and state.exemplars:
        vectors["gate"] = state.exemplars
    norms = state.norms if state.phase == "train" else ()
    schedule, merges = strategy.schedule, 0
    if state.phase == "train" and isinstance(schedule, EdgeCloud):
        merges = schedule.edge_merges
    return Tour(
        state.tour_id(tour), state.kit, vectors, tour.hops, tour.spares, _task(state, tour), seed, job.tours, job.gate,
        norms, merges, weighting_of(strategy.aggregator),
    )  # fmt: skip


def _task(state: JobState, tour: TourPlan) -> Task:
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
