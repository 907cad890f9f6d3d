"""Closing a round: what the tours brought home becomes the job's next state. Work on vectors; no role, no network."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.records import DevicesEstimated, LegPassed, RoundClosed
from coordinator.rounds.estimation import estimated, keep_weights
from coordinator.rounds.merging import ANCHOR, MODEL, RELAY, SLOT, JobVectors, TourResult, next_vectors
from coordinator.rounds.planning import moment_of
from coordinator.rounds.results import LISTED, failures_of, reports_of, returned_by, tour_model, traffic_of
from coordinator.rounds.schedules import merges
from coordinator.state import JobState
from sojourn.model import vectors
from sojourn.parts import UpdateEstimator
from sojourn.protocol.limits import LOSS, MOST_BYTES, MOST_SECONDS, sum_within, within
from sojourn.protocol.wire import RoundReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.jobs.settings import JobSettings
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

    state: JobState


def close_round(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> RoundClosed | DevicesEstimated:
    """Merge in plan order and evaluate; or, after an estimation, work out what it found."""
    if work.state.phase == "estimate":
        return estimated(work, blobs, evaluator)
    return _Closing(work, blobs, evaluator).record()


def pass_leg(work: PassLeg, blobs: BlobStore, evaluator: Evaluator) -> LegPassed:
    """What the present leg brought home is what the next one departs with."""
    state, kit = work.state, evaluator.kit(work.state)
    model = _relayed(state, blobs, kit)
    exact = vectors.save(blobs, model, "float32", kit.model)
    handout = handed_out(model, state.settings, exact, blobs, kit)
    return LegPassed(state.name, state.leg + 1, {RELAY: exact}, {RELAY: handout})


def _relayed(state: JobState, blobs: BlobStore, kit: Kit) -> Vector:
    """The model that the present leg brought home, or that it was given if it lost it."""
    tours = [tour for tour in state.tours if tour.leg == state.leg]
    models = (tour_model(state, tour, blobs, kit) for tour in tours)
    given = state.vectors[tours[0].start["model"]]
    return next((model for model in models if model is not None), vectors.load(blobs, given, kit.model))


class _Closing:
    """A training round that is being closed: the visits that its tours report, and the models that they brought."""

    def __init__(self, work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> None:
        self._work, self._blobs, self._evaluator = work, blobs, evaluator
        self._state, self._kit = work.state, evaluator.kit(work.state)
        self._reports = [(tour, reports_of(work.state, tour, blobs)) for tour in work.state.tours]
        self._done = [report for _, each in self._reports for report in each if report.status == "done"]

    def record(self) -> RoundClosed:
        """Merge, evaluate, and say what became of the visits."""
        state, strategy, blobs, kit = self._state, self._state.strategy, self._blobs, self._kit
        results = _results(state, strategy, blobs, kit)
        after = self._merged(results)
        exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in after.vectors.items()}
        return RoundClosed(
            state.name,
            exact,
            handouts(after.vectors, exact, strategy, state.settings, blobs, kit),
            self._norms() or state.norms,
            self._report(len(results), after.vectors[MODEL]),
            merged=ANCHOR not in after.vectors,
            slots=dict(after.slots),
            visits=dict(Counter(each.device for each in self._done)),
            samples={each.device: each.samples for each in self._done},
            weights=_updates(state, strategy, self._reports, blobs, kit),
        )

    def _merged(self, results: Sequence[TourResult]) -> JobVectors:
        """The job's vectors after the round: merged, or each in its slot until the schedule merges them."""
        state, strategy = self._state, self._state.strategy
        held = {name: ref for name, ref in state.vectors.items() if name != RELAY}
        now = {name: vectors.load(self._blobs, ref, self._kit.model) for name, ref in held.items()}
        due = merges(strategy.schedule, moment_of(state, state.settings, len(state.arranged)))
        return next_vectors(
            strategy, JobVectors(now, state.slots), results, len(state.fleet), due=due, before=state.merged_fleet
        )

    def _report(self, tours: int, model: Vector) -> RoundReport:
        """What people read of the round; `tours` of it brought a model home."""
        state = self._state
        accuracy, loss = self._evaluator.evaluate(state, model)
        failures = [line for tour, each in self._reports for line in failures_of(state, tour, each)]
        return RoundReport(
            state.round,
            accuracy,
            within(loss, LOSS),
            tours,
            len(self._done),
            len(failures),
            sum_within([traffic_of(self._work), state.estimation_traffic], MOST_BYTES),
            min(max(self._work.seconds, 0.0), MOST_SECONDS),
            {name: within(value, LOSS) for name, value in state.quality.items()},
            (*state.notices, *failures[:LISTED], *forgetful(state, self._done)[:LISTED]),
        )

    def _norms(self) -> tuple[float, ...]:
        """How far visits moved the model, from everywhere among them: what the gate compares the next round with."""
        strides = sorted(report.stride for report in self._done if report.norm > 0)
        return tuple(strides[:: max(1, len(self._done) // 128)][:256])


def _results(state: JobState, strategy: Strategy, blobs: BlobStore, kit: Kit) -> list[TourResult]:
    """What each tour brought home; of legs that followed one another, what the last one did."""
    home = [tour for tour in state.tours if _has_model(state, tour)]
    if any(tour.leg for tour in state.tours):
        return [_relayed_result(state, strategy, home, blobs, kit)] if home else []
    returns = strategy.objective.returns
    return [
        TourResult(model, state.arrived[tour.number].samples, tour.slot, returned_by(state, tour, returns, blobs, kit))
        for tour in home
        if (model := tour_model(state, tour, blobs, kit)) is not None
    ]


def _relayed_result(
    state: JobState, strategy: Strategy, home: Sequence[TourPlan], blobs: BlobStore, kit: Kit
) -> TourResult:
    """The one model of all legs, with the samples that they saw and the sums of what they returned."""
    sums: dict[str, NDArray[np.float64]] = {}
    for tour in home:
        for name, vector in returned_by(state, tour, strategy.objective.returns, blobs, kit).items():
            sums[name] = sums.get(name, np.zeros(len(vector))) + vector
    returned = {name: total.astype(np.float32) for name, total in sums.items()}
    seen = sum(state.arrived[tour.number].samples for tour in home)
    return TourResult(_relayed(state, blobs, kit), seen, None, returned)


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
            start = vectors.load(blobs, state.exact_vector(tour.start["model"]), kit.model)
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
