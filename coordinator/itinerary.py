"""Between a job's state and the rest of the world: tours as they go to sites, and rounds as people are told of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from coordinator.coordinator_records import JobCompiled, JobState, RoundClosed
from coordinator.job import Job, read_job
from sojourn.errors import Fault
from sojourn.messages import Tour
from sojourn.parts import SignatureEstimator
from sojourn.randomness import derive
from sojourn.wire import Task

if TYPE_CHECKING:
    from coordinator.coordinator_records import Record, RoundPlanned, TourPlan
    from sojourn.wire import Ref


@lru_cache(maxsize=8)
def settings_of(text: str) -> Job:
    """A job's settings; its file was checked when it was submitted."""
    return read_job(text, "the job")


def copy_of(job: JobState) -> JobState:
    """Work runs beside the machine: it gets a state of its own."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=JobState)


def blobs_of(outcome: Record) -> tuple[bytes, ...]:
    """What must be on the disk before this record is."""
    match outcome:
        case JobCompiled():
            refs: list[Ref | None] = [
                outcome.kit, outcome.model, outcome.handout, outcome.exemplars, outcome.test
            ]  # fmt: skip
        case RoundClosed():
            refs = [*outcome.vectors.values(), *outcome.handout.values()]
        case _:
            refs = []
    return tuple({ref.digest for ref in refs if ref})


def tour_message(job: JobState, settings: Job, tour: TourPlan) -> Tour:
    """A planned tour as it goes to its site."""
    strategy = settings.parts()
    if job.kit is None:
        raise Fault(f"{job.name} has tours but was not compiled")
    vectors = {name: job.handout[held] for name, held in tour.start.items()}
    training, encoding = settings.training, settings.encoding
    seed = derive(settings.seed, job.phase, job.round if job.phase == "train" else 0)
    if job.phase == "estimate" and isinstance(strategy.estimator, SignatureEstimator):
        training = msgspec.structs.replace(training, epochs=strategy.estimator.epochs)
        if strategy.estimator.where == "device" and job.exemplars:
            vectors["exemplars"] = job.exemplars
    elif settings.gate.loss_factor is not None and job.exemplars:
        vectors["gate"] = job.exemplars
    task = Task(job.phase, training, strategy.objective, encoding, settings.threads)
    norms = job.norms if job.phase == "train" else ()
    return Tour(
        job.tour_id(tour), job.kit, vectors, tour.hops, tour.spares, task, seed, settings.tours, settings.gate, norms
    )


def ending(job: JobState, settings: Job) -> str | None:
    """Why the job is over, if it is."""
    accuracy, rounds = job.history[-1].accuracy, len(job.history)
    if settings.target is not None and accuracy >= settings.target:
        return f"the target accuracy {settings.target:.2%} was reached in round {rounds}"
    return f"{rounds} rounds are done" if rounds >= settings.rounds else None


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
