"""Close a round: the results of its tours become the job's next state. Works on vectors, without roles or network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.fleet_records import VisitOutcome, worth_keeping
from coordinator.job_state import JobState
from coordinator.jobs.settings import JobSettings
from coordinator.records import DevicesEstimated, LegPassed, RoundClosed, RoundFailed, RoundKeeps, TourPlan, Unmerged
from coordinator.rounds.device_signatures import HopCheck
from coordinator.rounds.estimation import estimated, keep_weights
from coordinator.rounds.evaluation import Evaluator, own_results, storable_metrics
from coordinator.rounds.finishing import Finish, FinishRound, RoundFinished, finish_round, member_of, own_vectors
from coordinator.rounds.merging import (
    ANCHOR,
    BEFORE,
    FRONT,
    MODEL,
    RELAY,
    SLOT,
    JobVectors,
    TourResult,
    at_front,
    next_vectors,
    with_trailing_mean,
)
from coordinator.rounds.planning import moment_of
from coordinator.rounds.results import (
    CloseRound,
    failures_of,
    flagged_tour,
    outcomes_of,
    reports_of,
    returned_by,
    sample_of,
    tour_model,
    traffic_of,
    visit_alone,
)
from coordinator.rounds.round_messages import Failure, grouped, in_a_sentence, within_room
from coordinator.rounds.schedules import merges
from coordinator.rounds.tour_check import NO_SIGNATURES, TourCheck, usual_rise
from coordinator.strategies import Strategy
from sojourn.model import vectors
from sojourn.model.gate_rules import not_finite
from sojourn.model.scoring import Scores
from sojourn.parts import NoFinisher, UpdateEstimator
from sojourn.protocol.limits import LABEL, LOSS, MAX_BYTES, MAX_SECONDS, sum_within, within
from sojourn.protocol.spec import Kit
from sojourn.protocol.visit_outcomes import is_flagged
from sojourn.protocol.wire import DATA_NOTE, Ref, RoundReport, VisitReport
from sojourn.store.blobs import BlobStore

Vector = NDArray[np.float32]
Finishing = Callable[[FinishRound], RoundFinished]


class PassLeg(msgspec.Struct, frozen=True):
    """Pass the results of a completed leg to the tours that depart from them."""

    state: JobState


def close_round(
    work: CloseRound,
    blobs: BlobStore,
    evaluator: Evaluator,
    hops: HopCheck = NO_SIGNATURES,
    finish: Finishing | None = None,
) -> RoundClosed | RoundFailed | DevicesEstimated:
    """Merge in plan order, finish and evaluate; after an estimation, compute the estimates.

    A round fails if none of its visits succeeded, or if its merge is not finite.

    finish: performs the finisher's work; None to do it in this thread.
    """
    if work.state.phase == "estimate":
        return estimated(work, blobs, evaluator, hops)
    return _Closing(work, blobs, evaluator, hops, finish or partial(finish_round, blobs=blobs)).record()


def pass_leg(work: PassLeg, blobs: BlobStore, evaluator: Evaluator, hops: HopCheck = NO_SIGNATURES) -> LegPassed:
    """Return the result of the current leg as the input of the next one."""
    state, kit = work.state, evaluator.kit(work.state)
    leg = [(tour, reports_of(state, tour, blobs)) for tour in state.tours if tour.leg == state.leg]
    model = _relayed(state, TourCheck(state, leg, blobs, evaluator, hops), blobs, kit)
    exact = vectors.save(blobs, model, "float32", kit.model)
    wire_vectors = sent_vector(model, state.settings, exact, blobs, kit)
    return LegPassed(state.name, state.leg + 1, {RELAY: exact}, {RELAY: wire_vectors})


def _relayed(state: JobState, check: TourCheck, blobs: BlobStore, kit: Kit) -> Vector:
    """Return the model that the current leg brought back, or its input if that model was lost."""
    tours = [tour for tour in state.tours if tour.leg == state.leg]
    models = (check.model(tour) for tour in tours)
    given = state.vectors[tours[0].start["model"]]
    return next((model for model in models if model is not None), vectors.load(blobs, given, kit.model))


class _Closing:
    """A training round that is being closed: the visits that its tours report, and their models."""

    def __init__(
        self, work: CloseRound, blobs: BlobStore, evaluator: Evaluator, hops: HopCheck, finish: Finishing
    ) -> None:
        self._work, self._blobs, self._evaluator, self._finish = work, blobs, evaluator, finish
        self._state, self._kit = work.state, evaluator.kit(work.state)
        self._reports = [(tour, reports_of(work.state, tour, blobs)) for tour in work.state.tours]
        self._done = [report for _, each in self._reports for report in each if report.status == "done"]
        self._check = TourCheck(self._state, self._reports, blobs, evaluator, hops)
        refusals = {tour.number: self._check.refusal(tour) for tour in self._state.tours}
        self._refused = {number: reason for number, reason in refusals.items() if reason}
        flags = {tour.number: self._check.flagged(tour) for tour in self._state.tours}
        self._flagged = {number: reason for number, reason in flags.items() if reason}
        alone = [visit_alone(tour, each) for tour, each in self._reports if tour.number in self._refused]
        self._counted = [each for each in self._done if each not in alone]

    def record(self) -> RoundClosed | RoundFailed:
        """Merge, evaluate, and record the outcomes of the visits."""
        state = self._state
        results = self._results()
        if not self._has_result(results):
            trained = any(each.status in ("done", "refused") for _, reports in self._reports for each in reports)
            return self._failed("every result was refused" if trained else "no device could train")
        due, anyway = self._due(last=None), self._due(last=False)
        after, fault = self._merged(results, due=due)
        if fault:
            return self._failed("the merged model is not usable", fault)
        finish = self._finished(after.vectors[MODEL]) if due else None
        if finish is not None:
            after = replace(after, vectors={**after.vectors, MODEL: finish.model})
        exact, wire_vectors = self._saved(after, finish.own if finish else own_vectors(state))
        return RoundClosed(
            state.name,
            exact,
            wire_vectors,
            self._norms() or state.norms,
            self._report(len(results), after, finish),
            merged=ANCHOR not in after.vectors,
            slots=dict(after.slots),
            visits=dict(Counter(each.device for each in self._done)),
            samples={each.device: each.samples for each in self._counted},
            weights=self._updates(),
            rises=usual_rise(self._check.rises),
            keeps=self._keeps(self._unmerged(results) if due and not anyway else None),
            visited=worth_keeping(self._outcomes()),
            device_notes={it.device: note for it in self._counted if (note := data_note(it)) and self._is_news(it)},
        )

    def _has_result(self, results: Sequence[TourResult]) -> bool:
        """Return whether a visit succeeded; if devices keep their own models, no model needs to come back."""
        counts = any(
            each.status == "done"
            for tour, reports in self._reports
            if tour.number not in self._refused
            for each in reports
        )
        return counts and (bool(results) or self._state.strategy.objective.outcome != "one model")

    def _failed(self, problem: str, *faults: str) -> RoundFailed:
        """Return the record of a round without a result; `problem` begins the sentence with the reason."""
        state, failures = self._state, self._failures()
        lines = [*faults, *grouped(failures)]
        return RoundFailed(
            state.name,
            in_a_sentence(problem, lines),
            within_room([*lines, *state.unestimated], state.name),
            traffic_of(self._work),
            sum(failure.visits for failure in failures),
            dict(Counter(each.device for each in self._done)),
            norms=self._norms(),
            rises=usual_rise(self._check.rises),
            visited=worth_keeping(self._outcomes()),
        )

    def _failures(self) -> list[Failure]:
        """Return the failures of all tours."""
        return [
            failure
            for tour, each in self._reports
            for failure in failures_of(self._state, tour, each, self._refused.get(tour.number))
        ]

    def _keeps(self, unmerged: Unmerged | None) -> RoundKeeps | None:
        if self._work.measure:
            return RoundKeeps(unmerged=unmerged) if unmerged else None
        return RoundKeeps(unmerged=unmerged, evaluation_pending=True)

    def _due(self, *, last: bool | None) -> bool:
        """Return whether models merge after this round, with `last` overriding whether it is the job's last round."""
        state = self._state
        moment = moment_of(state, state.settings, len(state.arranged))
        return merges(state.strategy.schedule, moment if last is None else replace(moment, last=last))

    def _saved(self, after: JobVectors, own: Mapping[str, Ref]) -> tuple[dict[str, Ref], dict[str, Ref]]:
        """Return the job's vectors, exact and as sent to devices; `own` are the finisher's."""
        state, blobs, kit = self._state, self._blobs, self._kit
        exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in after.vectors.items()}
        exact |= own
        return exact, sent_vectors(after.vectors, exact, state.strategy, state.settings, blobs, kit)

    def _unmerged(self, results: Sequence[TourResult]) -> Unmerged:
        """Return the state from which the job continues if it gets more rounds, so that this round need not merge."""
        state, (after, _) = self._state, self._merged(results, due=False)
        return Unmerged(
            *self._saved(after, own_vectors(self._state)), dict(after.slots), state.since_merge + 1, state.merged_fleet
        )

    def _outcomes(self) -> Iterator[VisitOutcome]:
        """Yield the outcome of each visit, for the device history."""
        for tour, each in self._reports:
            number = tour.number
            given_up, flagged = self._state.given_up.get(number), self._flagged.get(number)
            yield from outcomes_of(tour, each, self._refused.get(number), given_up, flagged)

    def _results(self) -> list[TourResult]:
        """Return the result of each tour; of consecutive legs, the result of the last one."""
        state, returns = self._state, self._state.strategy.objective.returns
        home = [tour for tour in state.tours if self._counts(tour)]
        if any(tour.leg for tour in state.tours):
            return [self._relayed_result(home)] if home else []
        return [
            TourResult(
                model, self._check.weight(tour), tour.slot, returned_by(state, tour, returns, self._blobs, self._kit)
            )
            for tour in home
            if (model := tour_model(state, tour, self._blobs, self._kit)) is not None
        ]

    def _finished(self, mean: Vector) -> Finish | None:
        """Run the finisher on the models of the round; None if there is no finisher or no model."""
        state, blobs, kit = self._state, self._blobs, self._kit
        home = [(tour, each) for tour, each in self._reports if self._counts(tour)]
        if isinstance(state.strategy.finisher, NoFinisher) or not home:
            return None
        members = (member_of(state, tour, each, self._check.weight(tour), blobs, kit) for tour, each in home)
        work = FinishRound(state, tuple(members), vectors.save(blobs, mean, "float32", kit.model))
        return Finish(work, self._finish(work), blobs, self._evaluator)

    def _counts(self, tour: TourPlan) -> bool:
        """Return whether a tour brought back a model that is not refused."""
        arrived = self._state.arrived.get(tour.number)
        return arrived is not None and "model" in arrived.vectors and tour.number not in self._refused

    def _relayed_result(self, home: Sequence[TourPlan]) -> TourResult:
        """Return the one model of all legs, with the samples that they saw and the sums of what they returned."""
        state, sums = self._state, dict[str, "NDArray[np.float64]"]()
        for tour in home:
            back = returned_by(state, tour, state.strategy.objective.returns, self._blobs, self._kit)
            for name, vector in back.items():
                sums[name] = sums.get(name, np.zeros(len(vector))) + vector
        returned = {name: total.astype(np.float32) for name, total in sums.items()}
        seen = sum(self._check.weight(tour) for tour in home)
        return TourResult(_relayed(state, self._check, self._blobs, self._kit), seen, None, returned)

    def _merged(self, results: Sequence[TourResult], *, due: bool) -> tuple[JobVectors, str | None]:
        """Return the job's vectors after the round: merged, or each in its slot until the schedule merges them.

        A merge that is not finite changes nothing; the second value then describes what is wrong.
        """
        state, strategy = self._state, self._state.strategy
        own = own_vectors(self._state)
        held = {name: ref for name, ref in state.vectors.items() if name != RELAY and name not in own}
        now = {name: vectors.load(self._blobs, ref, self._kit.model) for name, ref in held.items()}
        held_back = JobVectors(now, state.slots)
        with np.errstate(all="ignore"):
            after = next_vectors(
                strategy,
                at_front(held_back),
                results,
                len(state.fleet),
                due=due,
                before=state.merged_fleet,
                trained=self._kit.model.trainable_size,
                gamma=self._kit.model.gamma,
            )
            after = with_trailing_mean(held_back, after, strategy.aggregator.window, state.round)
        faults = (not_finite(vector, repr(name)) for name, vector in after.vectors.items())
        if fault := next((fault for fault in faults if fault), None):
            return held_back, fault
        return after, None

    def _updates(self) -> dict[str, Ref]:
        """Return the last update of each device that was alone on its tour, if the arranger uses it."""
        state, found = self._state, {}
        if not isinstance(state.strategy.estimator, UpdateEstimator):
            return {}
        for tour, each in self._reports:
            done = [report.device for report in each if report.status == "done"]  # this may be a spare device
            alone = len(done) == 1 and tour.number not in self._refused
            model = tour_model(state, tour, self._blobs, self._kit) if alone else None
            if model is not None:
                start = vectors.load(self._blobs, state.exact_vector(tour.start["model"]), self._kit.model)
                found[done[0]] = keep_weights((model - start)[: self._kit.model.trainable_size], self._blobs)
        return found

    def _report(self, tours: int, after: JobVectors, finish: Finish | None) -> RoundReport:
        """Return the report of the round; `tours` is the number of tours that brought back a model."""
        state, found = self._state, Scores(nan, nan, {})
        outcomes = list(self._outcomes())
        if self._work.measure:
            found = self._evaluator.evaluate(state, after.vectors[MODEL], after.vectors.get(BEFORE))
        notes = finish.notes if finish else ()
        others = finish.metrics() if finish and self._work.measure else {}
        failures = self._failures()
        flagged = [flagged_tour(tour, why) for tour, _ in self._reports if (why := self._flagged.get(tour.number))]
        noted = grouped(
            [*flagged, *(Failure(each.device, each.reason) for each in self._counted if self._is_news(each))]
        )
        lines = [*((not state.history and state.data_notices) or ()), *state.unestimated, *state.notices]
        lines += [*notes, *grouped(failures), *noted, *grouped(lost_memory(state, self._done))]
        return RoundReport(
            state.round,
            found.accuracy,
            within(found.loss, LOSS),
            tours,
            sum(each.status == "done" for each in outcomes),
            sum(failure.visits for failure in failures) + state.estimation_failures,
            sum_within([traffic_of(self._work), state.estimation_traffic], MAX_BYTES),
            min(max(self._work.seconds, 0.0), MAX_SECONDS),
            {name: within(value, LOSS) for name, value in state.quality.items()},
            within_room(lines, state.name),
            self._work.at,
            storable_metrics(found.metrics | others | own_results(self._counted, state.settings.task.kind)),
            sum(is_flagged(each.status, each.reason) for each in outcomes),
        )

    def _is_news(self, visit: VisitReport) -> bool:
        """Return whether to report the reason of a successful visit; a device's note on its data is reported once."""
        note = data_note(visit)
        return bool(visit.reason) and (not note or note != self._state.device_notes.get(visit.device))

    def _norms(self) -> tuple[float, ...]:
        """Return a sample of how far visits moved the model, with which the gate compares the next round."""
        return sample_of(self._check.strides)


def data_note(visit: VisitReport) -> str:
    """Return the note on a device's data if that is all it reports, cut to a label's length; otherwise empty."""
    return visit.reason[:LABEL] if visit.reason.startswith(DATA_NOTE) else ""


def lost_memory(state: JobState, done: Iterable[VisitReport]) -> list[Failure]:
    """Return the devices that lost part of their memory of the job, and started without it."""
    seen, lines = Counter(state.visits), []
    for report in done:
        remembered = report.metrics.get("remembered")
        if remembered is not None and remembered < seen[report.device]:
            visits = f"(it has {remembered:.0f} of {seen[report.device]} visits)"
            lines.append(Failure(report.device, f"lost its memory of this job {visits}"))
        seen[report.device] += 1
    return lines


def sent_vectors(
    held: Mapping[str, Vector],
    exact: Mapping[str, Ref],
    strategy: Strategy,
    job: JobSettings,
    blobs: BlobStore,
    kit: Kit,
) -> dict[str, Ref]:
    """Return the vectors to send to devices: models in the job's encoding, an objective's other vectors exact."""
    models = [name for name in held if name in (MODEL, ANCHOR, FRONT) or name.startswith(SLOT)]
    sent = {name: exact[name] for name in strategy.objective.receives if name in exact}
    return {name: sent_vector(held[name], job, exact[name], blobs, kit) for name in models} | sent


def sent_vector(model: Vector, job: JobSettings, exact: Ref, blobs: BlobStore, kit: Kit) -> Ref:
    """Return a model as sent to devices, in the job's encoding."""
    return exact if job.encoding == "float32" else vectors.save(blobs, model, job.encoding, kit.model)
