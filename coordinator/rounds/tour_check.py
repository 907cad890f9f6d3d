"""Check completed tours: a site's reports are trusted no more than a device's.

A tour's model must be finite and of the right length. By the gate's rules, it must not be farther from its start than
its visits can have moved it, and not increase the loss on the exemplars too much. Its weight is limited by its reports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from coordinator.job_state import JobState
from coordinator.records import TourPlan
from coordinator.rounds.device_signatures import HopCheck
from coordinator.rounds.orders import Leg, Rises, peer_bounds, rises_of, task_of, waves_of
from coordinator.rounds.results import reported_vectors, returned_by, tour_model
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.exemplar_view import ExemplarView
from sojourn.model.gate_rules import (
    Refusal,
    Update,
    against,
    by_rule,
    damaged,
    granted_samples,
    longest_update,
    not_finite,
    rise_of,
    too_long,
    unsound_state,
)
from sojourn.model.vectors import cap_weights
from sojourn.parts import TourBounds
from sojourn.protocol.visit_outcomes import SHORTENED, WOULD_REFUSE
from sojourn.protocol.wire import VisitReport, stride, visit_steps
from sojourn.store.blobs import BlobStore, ref_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from coordinator.rounds.evaluation import Evaluator

    Vector = NDArray[np.float32]
    Reported = Sequence[tuple[TourPlan, Sequence[VisitReport]]]

NO_SIGNATURES = HopCheck()
BY = "by the coordinator, because"
FORGED = "check the keys of the devices and whether this edge server can be trusted"
"""What to do about a tour whose signatures do not match its site's report."""
MAX_RISE = 1e6
"""Larger rises are ignored when computing the usual one."""
MIN_RISES = 8
"""With fewer rises than this, their spread is not significant."""
SEVERAL_VISITS = 2.0
"""The evidence allowed against a tour of several visits, relative to that against a single one."""
MAX_DEVIATIONS = 4.0
"""Number of median deviations above the median that a result may be, compared with others that differ much."""


def usual_rise(rises: Sequence[float]) -> Rises | None:
    """Return the median of some rises, at least 1, and their median deviation from it; None without any."""
    if not rises:
        return None
    usual = median(rises)
    spread = median(abs(rise - usual) for rise in rises) if len(rises) >= MIN_RISES else math.inf
    return min(MAX_RISE, max(1.0, usual)), spread


class TourCheck:
    """The results of a leg's or a round's tours, checked by the rules of the job's gate."""

    def __init__(
        self,
        state: JobState,
        reported: Reported,
        blobs: BlobStore,
        evaluator: Evaluator,
        hops: HopCheck = NO_SIGNATURES,
    ) -> None:
        self._hops, self._verdicts = hops, dict[int, Refusal | None]()
        self._state, self._blobs, self._evaluator = state, blobs, evaluator
        self._kit, self._gate = evaluator.kit(state), state.settings.gate.rules
        self._leg = Leg(state)
        self._done = {tour.number: [it for it in each if it.status == "done"] for tour, each in reported}
        done = [report for each in self._done.values() for report in each]
        counts = [each for each in state.samples.values() or (report.samples for report in done) if each > 0]
        self._usual_samples = int(median(counts)) if counts else None
        self._bounds = peer_bounds(state, self._usual_samples, rises_of(state))
        self._tasks = {tour.number: task_of(state, tour) for tour, _ in reported}
        kept = [
            stride(report.norm, steps)
            for number, each in self._done.items()
            for report, steps in zip(each, self._steps(number), strict=True)
            if report.norm
        ]
        refused = [report for _, each in reported for report in each if report.status == "refused"]
        self.strides = [*kept, *(report.stride for report in refused if report.norm)]
        """How far each visit moved the model, normalised so that devices with little and much data are comparable.

        Those of refused results are included: if the gate is wrong about most, the next round corrects it.
        """
        self.rises = [rise for report in [*done, *refused] if (rise := report.metrics.get("rise", 0.0)) > 0]
        """The factor by which each visit increased the loss on the exemplars."""

    def model(self, tour: TourPlan) -> Vector | None:
        """Return a tour's model if it passes the checks."""
        return None if self.refusal(tour) else tour_model(self._state, tour, self._blobs, self._kit)

    def refusal(self, tour: TourPlan) -> str | None:
        """Return the check and the reason by which a tour is refused; None if it counts, or brought back no model."""
        found = self._verdict(tour)
        return f"{BY} {found}" if found and (found.damage or not self._bounds.report) else None

    def flagged(self, tour: TourPlan) -> str | None:
        """Return why a tour that counts would have been refused, if `gate = "report"`."""
        found = self._verdict(tour)
        return f"{WOULD_REFUSE}{BY} {found}" if found and not self.refusal(tour) else None

    def _verdict(self, tour: TourPlan) -> Refusal | None:
        if tour.number not in self._verdicts:
            self._verdicts[tour.number] = self._judge(tour)
        return self._verdicts[tour.number]

    def _judge(self, tour: TourPlan) -> Refusal | None:
        if reason := self._hops.refusal(self._state, tour, self._done[tour.number]):
            return Refusal(reason, FORGED, damage=True)
        try:
            model = tour_model(self._state, tour, self._blobs, self._kit)
            names = self._state.strategy.objective.returns if self._state.phase == "train" else ()
            returned = returned_by(self._state, tour, names, self._blobs, self._kit)
            returned |= reported_vectors(self._state, tour, self._blobs, self._kit) if model is not None else {}
        except InvalidBlob as error:
            return damaged(str(error))
        if model is None:
            return None
        faults = [
            not_finite(model),
            unsound_state(model, self._kit.model),
            *(not_finite(vector, repr(name)) for name, vector in returned.items()),
        ]
        if fault := next((fault for fault in faults if fault), None):
            return damaged(fault)
        if not self._done[tour.number]:
            return Refusal("it has a model, but its site reports no visit that trained it", FORGED, damage=True)
        # The start of an earlier leg is no longer stored: it was checked when that leg ended.
        return self._judged(tour, model) if tour.leg == self._state.leg and self._state.phase == "train" else None

    def _judged(self, tour: TourPlan, model: Vector) -> Refusal | None:
        """Return why a finite model cannot result from the tour's visits and its start, or None."""
        if not self._state.settings.gate.on:
            return None
        update, task = self._update(tour, model), self._tasks[tour.number]
        strides = self._usual_stride if task.objective.norm_comparable else []
        one_step = longest_update(self._gate, strides, 1, task.training, None)
        longest = one_step * sum(math.sqrt(steps) for steps in self._steps(tour.number))
        bounds = self._together if self._leg.judges_together(tour) else self._bounds
        if len(self._done[tour.number]) > 1:
            # The edge server checked each visit, and usual values are known for single visits only.
            most = bounds.most_evidence and SEVERAL_VISITS * bounds.most_evidence
            bounds = msgspec.structs.replace(bounds, most_rise=None, most_evidence=most)
        if reason := too_long(update.norm, longest):
            return by_rule(reason, "norm_factor")
        refusal = against(update, self._view, self._gate, bounds, task)
        if not refusal and any(SHORTENED in report.reason for report in self._done[tour.number]):
            strict = msgspec.structs.replace(bounds, most_evidence=None)  # as in the gate of an edge server
            refusal = against(update, self._view, self._gate, strict, task)
        return refusal

    def _update(self, tour: TourPlan, model: Vector) -> Update:
        start = self._state.exact_vector(tour.start["model"])
        before = vectors.load(self._blobs, start, self._kit.model)
        came = self._state.arrived[tour.number].vectors["model"]
        exact = came.encoding == "float32" and not came.delta
        digest = came.digest if exact else ref_of(model.astype("<f4", copy=False).tobytes()).digest
        return Update(before, model, (start.digest, digest), self._kit.model.trainable_size)

    @cached_property
    def _usual_stride(self) -> list[float]:
        """The median of the known strides, as a list, from which the maximum distance is computed."""
        strides = [*self._state.norms, *self.strides]
        return [median(strides)] if strides else []

    @cached_property
    def _view(self) -> ExemplarView | None:
        return self._evaluator.view(self._state)

    @cached_property
    def _together(self) -> TourBounds:
        """The bounds for devices that are alone on their tours: the other results of the round define what is usual.

        Their rises are computed here, from the models themselves.
        """
        if self._view is None:
            return self._bounds
        found = []
        for tour in self._state.tours:
            if tour.leg == self._state.leg and self._leg.judges_together(tour):
                model = self._finite_model(tour)
                found += [] if model is None else [rise_of(self._update(tour, model), self._view)]
        return peer_bounds(self._state, self._usual_samples, self._room(found) or rises_of(self._state))

    def _room(self, rises: Sequence[float]) -> Rises | None:
        """Return the usual rise if devices share few classes and differ much: a bad result must exceed it clearly."""
        usual = usual_rise(rises)
        if not usual or self._gate.loss_factor is None:
            return usual
        apart = median(abs(rise - usual[0]) for rise in rises)
        return min(MAX_RISE, max(usual[0], (usual[0] + MAX_DEVIATIONS * apart) / self._gate.loss_factor)), usual[1]

    def _finite_model(self, tour: TourPlan) -> Vector | None:
        """Return a tour's model if it is present and finite."""
        try:
            model = tour_model(self._state, tour, self._blobs, self._kit)
        except InvalidBlob:
            return None
        return None if model is None or not_finite(model) or unsound_state(model, self._kit.model) else model

    def _steps(self, number: int) -> list[int]:
        """Return the steps of a tour's visits according to its task."""
        return [
            visit_steps(self._tasks[number], granted_samples(report.samples, self._bounds), earlier)
            for earlier, report in enumerate(self._done[number])
        ]

    def weight(self, tour: TourPlan) -> float:
        """Return the weight of a tour in samples: those of its visits, with each device limited to its share."""
        arrived = self._state.arrived[tour.number]
        return min(
            float(arrived.samples),
            sum(report.samples * self._share[report.device] for report in self._weighing(tour.number)),
        )

    @cached_property
    def _share(self) -> dict[str, float]:
        """The part of each device's samples that counts, usually all."""
        counts: Counter[str] = Counter()
        for number in self._done:
            for report in self._weighing(number):
                counts[report.device] += report.samples
        counted = cap_weights([float(samples) for samples in counts.values()], self._bounds.most_share)
        parts = zip(counts.items(), counted, strict=True)
        return {device: 1.0 if samples <= most else most / samples for (device, samples), most in parts}

    def _weighing(self, number: int) -> list[VisitReport]:
        """Return the visits that a tour's model represents: all, or with merges at the edge those of the last wave."""
        done = self._done[number]
        if not waves_of(self._state) or not done:
            return done
        size = next(len(tour.hops) for tour in self._state.tours if tour.number == number)
        last = max(report.hop // size for report in done)
        return list({report.device: report for report in done if report.hop // size == last}.values())
