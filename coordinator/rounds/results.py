"""Read the results of a round's tours: their models, their reports, and their traffic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.fleet_records import VisitOutcome
from coordinator.job_state import JobState
from coordinator.records import TourPlan
from coordinator.rounds.orders import waves_of
from coordinator.rounds.round_messages import Failure, names
from sojourn.errors import InvalidBlob, InvalidMessage
from sojourn.model import vectors
from sojourn.model.gate_rules import counted_samples
from sojourn.model.vectors import spec_of_vector
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import MAX_BYTES, TEXT, Moment, sum_within
from sojourn.protocol.spec import Kit
from sojourn.protocol.visit_outcomes import WOULD_REFUSE
from sojourn.protocol.wire import DATA_NOTE, Ref, VisitReport
from sojourn.store.blobs import BlobStore

MAX_NAMES_LENGTH = 400
"""Maximum characters for the devices of a refused tour."""
EXTRA_ATTEMPTS = 4
"""Attempts of a hop that are accepted beyond those of the tour's policy, since restarts may cause some."""
REPORT_BYTES = 64 << 20
"""Maximum bytes of a tour's reports."""
log = logging.getLogger(__name__)


class CloseRound(msgspec.Struct, frozen=True):
    """All tours have arrived: compute the job's next state from them."""

    state: JobState
    seconds: float
    traffic: int
    at: Moment | None = None
    measure: bool = True
    """Whether the model is tested while the round is closed; otherwise as separate work (`MeasureRound`)."""


def tour_model(state: JobState, tour: TourPlan, blobs: BlobStore, kit: Kit) -> NDArray[np.float32] | None:
    """Return a tour's model; a difference is added to the exact start, so that rounding errors do not accumulate."""
    arrived = state.arrived.get(tour.number)
    ref = arrived.vectors.get("model") if arrived else None
    if ref is None:
        return None
    vector = vectors.load(blobs, ref, kit.model)
    if not ref.delta:
        return vector
    with np.errstate(all="ignore"):  # values that are not finite are refused later
        start = vectors.load(blobs, state.exact_vector(tour.start["model"]), kit.model)
        return vectors.apply_delta(start, vector, kit.model)


def returned_by(
    state: JobState, tour: TourPlan, names: tuple[str, ...], blobs: BlobStore, kit: Kit
) -> dict[str, NDArray[np.float32]]:
    """Return the sums of what the tour's devices returned in addition to their models."""
    arrived = state.arrived.get(tour.number)
    found = {name: arrived.vectors[name] for name in names if name in arrived.vectors} if arrived else {}
    return {name: vectors.load(blobs, ref, kit.model) for name, ref in found.items()}


def reported_refs(state: JobState, tour: TourPlan) -> dict[str, Ref]:
    """Return the vectors that a tour's device reported for the finisher."""
    arrived = state.arrived.get(tour.number)
    names = state.strategy.objective.reports
    return {name: arrived.vectors[name] for name in names if name in arrived.vectors} if arrived else {}


def reported_vectors(state: JobState, tour: TourPlan, blobs: BlobStore, kit: Kit) -> dict[str, NDArray[np.float32]]:
    """Load these vectors; raises InvalidBlob if one is missing or has the wrong length."""
    if not (names := state.strategy.objective.reports) or state.phase != "train":
        return {}
    refs = reported_refs(state, tour)
    if missing := [name for name in names if name not in refs]:
        raise InvalidBlob(f"the vector {missing[0]!r} did not come with the model")
    objective = state.strategy.objective
    return {name: vectors.load(blobs, ref, spec_of_vector(name, objective, kit)) for name, ref in refs.items()}


def reports_of(state: JobState, tour: TourPlan, blobs: BlobStore) -> list[VisitReport]:
    """Return how each visit ended, only for devices and hops of the tour, and each hop done at most once."""
    visits, most = len(tour.hops) * max(1, waves_of(state)), state.settings.gate.bounds(1.0)
    attempts = 1 + state.settings.tours.retries + len(tour.spares) + EXTRA_ATTEMPTS
    found, done, tried = [], set(), Counter[int]()
    unexpected = 0
    for report in _reports(state, tour, blobs):
        known = report.device in tour.hops or report.device in tour.spares
        if not known or report.hop >= visits or report.hop in done or tried[report.hop] >= attempts:
            unexpected += 1
            continue
        tried[report.hop] += 1
        if report.status == "done":
            done.add(report.hop)
        found.append(msgspec.structs.replace(report, samples=counted_samples(report.samples, most)))
    if unexpected:
        log.warning("site %s reports %d visits that its tour %d does not have", tour.site, unexpected, tour.number)
    return found


def _reports(state: JobState, tour: TourPlan, blobs: BlobStore) -> list[VisitReport]:
    arrived = state.arrived.get(tour.number)
    if arrived is None:
        return []
    try:
        return unpack_blob(blobs.read(arrived.reports.digest), list[VisitReport], REPORT_BYTES)
    except (InvalidMessage, InvalidBlob) as error:
        return [VisitReport(tour.hops[0], 0, "refused", str(error)[:TEXT], 0, 0.0, {}, None, 0.0)]


def sample_of(strides: Iterable[float]) -> tuple[float, ...]:
    """Return an evenly spaced sample of the strides, as a reference for the next round."""
    ordered = sorted(strides)
    return tuple(ordered[:: max(1, len(ordered) // 128)][:256])


def visit_alone(tour: TourPlan, reports: Iterable[VisitReport]) -> VisitReport | None:
    """Return the visit of a tour with a single device, which may be a spare."""
    done = [report for report in reports if report.status == "done"]
    return done[0] if len(tour.hops) == len(done) == 1 else None


def failures_of(
    state: JobState, tour: TourPlan, reports: Iterable[VisitReport], refused: str | None = None
) -> list[Failure]:
    """Return the failures of a tour; `refused` is why the tour itself does not count."""
    reports = list(reports)
    found, alone = [], visit_alone(tour, reports)
    if refused and alone:
        own = alone.reason.startswith(DATA_NOTE)  # a device's note on its data is an explanation, not the cause
        why = f"{refused}; {alone.reason}" if own else f"{alone.reason}, and {refused}" if alone.reason else refused
        found.append(Failure(alone.device, f"refused when its model came from site {tour.site}, {why}"))
    elif refused:
        done = sum(each.status == "done" for each in reports)
        whole = f"its tour of {names(tour.hops, MAX_NAMES_LENGTH)} is refused, {refused}"
        found.append(Failure(f"site {tour.site}", whole, max(1, done)))
    found += [Failure(each.device, f"{each.status}, {each.reason}") for each in reports if each.status != "done"]
    if reason := state.given_up.get(tour.number):
        found += [Failure(device, f"not visited, site {tour.site}: {reason}") for device in dict.fromkeys(tour.hops)]
    return found


def flagged_tour(tour: TourPlan, flagged: str) -> Failure:
    """Return what the coordinator would have refused, if `gate = "report"`."""
    if len(tour.hops) == 1:
        return Failure(tour.hops[0], flagged)
    return Failure(f"site {tour.site}", f"its tour of {names(tour.hops, MAX_NAMES_LENGTH)} {flagged}")


def outcomes_of(
    tour: TourPlan,
    reports: Iterable[VisitReport],
    refused: str | None,
    given_up: str | None,
    flagged: str | None = None,
) -> list[VisitOutcome]:
    """Return how each visit of a tour ended; for a tour that was given up, its planned visits.

    flagged: why the coordinator would have refused the tour.
    """
    if given_up:
        return [
            VisitOutcome(tour.number, hop, tour.site, device, "lost", given_up[:TEXT])
            for hop, device in enumerate(tour.hops)
        ]
    return [
        VisitOutcome(
            tour.number, it.hop, tour.site, it.device, "refused" if refused else it.status,
            "; ".join(why for why in _verdict_first(refused or flagged, it.reason) if why)[:TEXT],
            it.samples, it.seconds, it.metrics.get("loss"),
        )
        if it.status == "done"
        else VisitOutcome(tour.number, it.hop, tour.site, it.device, it.status, it.reason, 0, it.seconds)
        for it in reports
    ]  # fmt: skip


def _verdict_first(verdict: str | None, own: str) -> tuple[str, ...]:
    """Return the reasons with a verdict on the tour first; of two flags, the visit's own is enough."""
    if verdict and verdict.startswith(WOULD_REFUSE) and own.startswith(WOULD_REFUSE):
        return (own,)
    return (verdict or "", own)


def traffic_of(work: CloseRound) -> int:
    """Return the payload bytes of a round: between cloud and sites, and between sites and devices."""
    return sum_within([work.traffic, *(toured.traffic for toured in work.state.arrived.values())], MAX_BYTES)
