"""Between a job's state and the rest of the world: tours as they go to sites, and rounds as people are told of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from coordinator.aggregators.contributions import weighting_of
from coordinator.jobs.settings import JobSettings, read_job
from coordinator.records import DevicesEstimated, JobCompiled, JobState, LegPassed, RoundClosed
from sojourn.errors import Fault
from sojourn.parts import EdgeCloud, Elmy, Sgd
from sojourn.protocol.messages import Tour
from sojourn.protocol.wire import Task
from sojourn.randomness import derive

if TYPE_CHECKING:
    from coordinator.records import Record, RoundPlanned, TourPlan
    from coordinator.strategies import Strategy
    from sojourn.protocol.wire import Ref


@lru_cache(maxsize=8)
def settings_of(text: str) -> JobSettings:
    """A job's settings; its file was checked when it was submitted."""
    return read_job(text, "the job")


@lru_cache(maxsize=8)
def strategy_of(text: str) -> Strategy:
    """A job's strategy: putting it together takes longer than all else that is done for a tour."""
    return settings_of(text).parts()


def copy_of(job: JobState) -> JobState:
    """Work runs beside the machine: it gets a state of its own."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=JobState)


def blobs_of(outcome: Record) -> tuple[bytes, ...]:
    """What must be on the disk before this record is."""
    match outcome:
        case JobCompiled():
            refs: list[Ref | None] = [
                outcome.kit, outcome.initial, outcome.exemplars, outcome.test, *outcome.vectors.values(),
                *outcome.handout.values(),
            ]  # fmt: skip
        case RoundClosed():
            refs = [*outcome.vectors.values(), *outcome.handout.values(), *outcome.weights.values()]
        case LegPassed():
            refs = [*outcome.vectors.values(), *outcome.handout.values()]
        case DevicesEstimated():
            refs = [*outcome.weights.values()]
        case _:
            refs = []
    return tuple({ref.digest for ref in refs if ref})


def tour_message(job: JobState, settings: JobSettings, tour: TourPlan) -> Tour:
    """A planned tour as it goes to its site."""
    if job.kit is None:
        raise Fault(f"{job.name} has tours but was not compiled")
    strategy = strategy_of(job.text)
    vectors = {name: job.handed(held) for name, held in tour.start.items()}
    seed = derive(settings.seed, job.phase, job.round if job.phase == "train" else 0)
    if job.phase == "estimate":
        on_device = getattr(strategy.estimator, "where", "server") == "device"
        if job.exemplars and on_device and strategy.estimator.exemplars:
            vectors["exemplars"] = job.exemplars
    elif settings.gate.loss_factor is not None and job.exemplars:
        vectors["gate"] = job.exemplars
    norms = job.norms if job.phase == "train" else ()
    schedule, merges = strategy.schedule, 0
    if job.phase == "train" and isinstance(schedule, EdgeCloud):
        merges = schedule.edge_merges
    return Tour(
        job.tour_id(tour), job.kit, vectors, tour.hops, tour.spares, _task(job, tour, settings, strategy), seed,
        settings.tours, settings.gate, norms, merges, weighting_of(strategy.aggregator),
    )  # fmt: skip


def _task(job: JobState, tour: TourPlan, settings: JobSettings, strategy: Strategy) -> Task:
    """What each device of a tour is asked to do."""
    training, objective, estimator = strategy.training, strategy.objective, None
    if job.phase == "estimate":
        estimator, objective = strategy.estimator, Sgd()
        epochs = getattr(estimator, "epochs", 0)
        training = msgspec.structs.replace(training, epochs=epochs) if epochs else training
    elif isinstance(objective, Elmy) and _has_learnt(job, tour):  # only a model that is new is warmed up
        objective = msgspec.structs.replace(objective, warmup=0, start="received")
    return Task(job.phase, training, objective, settings.encoding, settings.threads, estimator)


def _has_learnt(job: JobState, tour: TourPlan) -> bool:
    """Whether the model that a tour departs with has been at a device before."""
    earlier_legs = tour.leg and any("model" in toured.vectors for toured in job.arrived.values())
    return bool(earlier_legs) or any(report.visits for report in job.history)


def ending(job: JobState, settings: JobSettings) -> str | None:
    """Why the job is over, if it is."""
    accuracy, rounds = job.history[-1].accuracy, len(job.history)
    if settings.target is not None and accuracy >= settings.target:
        return f"the target accuracy {settings.target:.2%} was reached in round {rounds}"
    return f"{rounds} rounds are done" if rounds >= settings.all_rounds else None


def told_plan(job: JobState, plan: RoundPlanned) -> str:
    """A plan in a line."""
    if plan.phase == "estimate":
        return f"job {job.name}: estimating {len(plan.tours)} devices"
    quality = ", ".join(f"{name} {value:.3f}" for name, value in plan.quality.items())
    visits = sum(len(tour.hops) for tour in plan.tours)
    said = f"job {job.name} round {job.round}: {len(plan.tours)} tours, {visits} visits"
    return f"{said} ({quality})" if quality else said


def told_round(job: JobState, closed: RoundClosed) -> str:
    """A round in a line."""
    it = closed.report
    return (
        f"job {job.name} round {it.round}: accuracy {it.accuracy:.2%}, loss {it.loss:.4f}, {it.visits} visits, "
        f"{it.lost} failed, {it.traffic / 1e6:.2f} MB, {it.seconds:.1f} s"
    )
