"""Closing a round: what the tours brought home becomes the job's next state. Work on vectors; no role, no network."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.jobs.settings import JobSettings, read_job
from coordinator.records import DevicesEstimated, JobState, LegPassed, RoundClosed
from coordinator.rounds.estimation import estimated, keep_weights
from coordinator.rounds.merging import ANCHOR, MODEL, RELAY, SLOT, Result, Stand, merged
from coordinator.rounds.planning import moment_of
from coordinator.rounds.results import SAID, failures_of, reports_of, returned_by, tour_model, traffic_of
from coordinator.rounds.schedules import merges
from sojourn.model import vectors
from sojourn.parts import UpdateEstimator
from sojourn.protocol.wire import RoundReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.records import TourPlan
    from coordinator.rounds.evaluation import Evaluator
    from coordinator.rounds.results import CloseRound
    from coordinator.strategies import Strategy
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import Ref, VisitReport
    from sojourn.store.blobs import BlobStore

    Vector = NDArray[np.float32]


class PassLeg(msgspec.Struct, frozen=True):
    """The tours of a leg are home, and others wait to depart from what they brought."""

    job: JobState


def close_round(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> RoundClosed | DevicesEstimated:
    """Merge in plan order and evaluate; or, after an estimation, work out what it found."""
    return estimated(work, blobs, evaluator) if work.job.phase == "estimate" else _closed(work, blobs, evaluator)


def pass_leg(work: PassLeg, blobs: BlobStore, evaluator: Evaluator) -> LegPassed:
    """What the present leg brought home is what the next one departs with."""
    state, kit = work.job, evaluator.kit(work.job)
    job = read_job(state.text, state.name)
    model = _relayed(state, blobs, kit)
    exact = vectors.save(blobs, model, "float32", kit.model)
    return LegPassed(state.name, state.leg + 1, {RELAY: exact}, {RELAY: handed_out(model, job, exact, blobs, kit)})


def _relayed(state: JobState, blobs: BlobStore, kit: Kit) -> Vector:
    """The model that the present leg brought home, or that it was given if it lost it."""
    tours = [tour for tour in state.tours if tour.leg == state.leg]
    models = (tour_model(state, tour, blobs, kit) for tour in tours)
    given = state.vectors[tours[0].start["model"]]
    return next((model for model in models if model is not None), vectors.load(blobs, given, kit.model))


def _closed(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> RoundClosed:
    state, job = work.job, read_job(work.job.text, work.job.name)
    strategy, kit = job.parts(), evaluator.kit(work.job)
    reports = [(tour, reports_of(state, tour, blobs)) for tour in state.tours]
    done = [report for _, each in reports for report in each if report.status == "done"]
    failures = [line for tour, each in reports for line in failures_of(state, tour, each)]
    results = _results(state, strategy, blobs, kit)
    before = {name: vectors.load(blobs, ref, kit.model) for name, ref in state.vectors.items() if name != RELAY}
    due = merges(strategy.schedule, moment_of(state, job, len(state.arranged)))
    stand = merged(strategy, Stand(before, state.slots), results, len(state.fleet), due=due, before=state.merged_fleet)
    exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in stand.vectors.items()}
    accuracy, loss = evaluator.evaluate(state, stand.vectors[MODEL])
    report = RoundReport(
        state.round, accuracy, loss, len(results), len(done), len(failures),
        traffic_of(work) + state.estimation_traffic, work.seconds, state.quality,
        (*state.notices, *failures[:SAID], *forgetful(state, done)[:SAID]),
    )  # fmt: skip
    norms = tuple(sorted(report.stride for report in done if report.norm > 0)[:: max(1, len(done) // 128)][:256])
    return RoundClosed(
        state.name, exact, handouts(stand.vectors, exact, strategy, job, blobs, kit), norms or state.norms, report,
        merged=ANCHOR not in stand.vectors, slots=dict(stand.slots),
        visits=dict(Counter(each.device for each in done)), samples={each.device: each.samples for each in done},
        weights=_updates(state, strategy, reports, blobs, kit),
    )  # fmt: skip


def _results(state: JobState, strategy: Strategy, blobs: BlobStore, kit: Kit) -> list[Result]:
    """What each tour brought home; of legs that followed one another, what the last one did."""
    home = [tour for tour in state.tours if _has_model(state, tour)]
    returns = strategy.objective.returns
    if not any(tour.leg for tour in state.tours):
        return [
            Result(model, state.arrived[tour.number].samples, tour.slot, returned_by(state, tour, returns, blobs, kit))
            for tour in home
            if (model := tour_model(state, tour, blobs, kit)) is not None
        ]
    seen = sum(state.arrived[tour.number].samples for tour in home)
    sums: dict[str, NDArray[np.float64]] = {}
    for tour in home:
        for name, vector in returned_by(state, tour, returns, blobs, kit).items():
            sums[name] = sums.get(name, np.zeros(len(vector))) + vector
    returned = {name: total.astype(np.float32) for name, total in sums.items()}
    return [Result(_relayed(state, blobs, kit), seen, None, returned)] if home else []


def _has_model(state: JobState, tour: TourPlan) -> bool:
    arrived = state.arrived.get(tour.number)
    return arrived is not None and "model" in arrived.vectors


def _updates(
    state: JobState,
    strategy: Strategy,
    reports: Iterable[tuple[TourPlan, Sequence[VisitReport]]],
    blobs: BlobStore,
    kit: Kit,
) -> dict[str, Ref]:
    """The last update of each device that was alone on its tour, where the arranger goes by it."""
    if not isinstance(strategy.estimator, UpdateEstimator):
        return {}
    found = {}
    for tour, each in reports:
        done = [report.device for report in each if report.status == "done"]  # a spare may have stood in
        model = tour_model(state, tour, blobs, kit) if len(done) == 1 else None
        if model is not None:
            start = vectors.load(blobs, state.held(tour.start["model"]), kit.model)
            found[done[0]] = keep_weights(model - start, blobs)
    return found


def forgetful(state: JobState, done: Iterable[VisitReport]) -> list[str]:
    """The devices that keep memory for the job and have lost some of it: they started clean."""
    seen, lines = Counter(state.visits), []
    for report in done:
        remembered = report.metrics.get("remembered")
        if remembered is not None and remembered < seen[report.device]:
            lines.append(
                f"{report.device}: lost its memory of this job (it remembers {remembered:.0f} of "
                f"{seen[report.device]} visits)"
            )
        seen[report.device] += 1
    return lines


def handouts(
    held: Mapping[str, Vector],
    exact: Mapping[str, Ref],
    strategy: Strategy,
    job: JobSettings,
    blobs: BlobStore,
    kit: Kit,
) -> dict[str, Ref]:
    """What may travel down: models in the job's encoding; what else an objective receives, exactly."""
    models = [name for name in held if name in (MODEL, ANCHOR) or name.startswith(SLOT)]
    sent = {name: exact[name] for name in strategy.objective.receives if name in exact}
    return {name: handed_out(held[name], job, exact[name], blobs, kit) for name in models} | sent


def handed_out(model: Vector, job: JobSettings, exact: Ref, blobs: BlobStore, kit: Kit) -> Ref:
    """A model as it travels down: in the job's encoding."""
    return exact if job.encoding == "float32" else vectors.save(blobs, model, job.encoding, kit.model)
