"""What the tours of a round brought home: their models, their reports, what they cost."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.fleet_records import VisitOutcome
from coordinator.rounds.failure_lines import Mishap, names
from coordinator.rounds.orders import waves_of
from coordinator.state import JobState
from hierarchy.edge.rules import counted_samples
from sojourn.errors import InvalidBlob, InvalidMessage
from sojourn.model import vectors
from sojourn.model.lengths import spec_of_vector
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import MOST_BYTES, TEXT, Moment, sum_within
from sojourn.protocol.visit_words import WOULD_REFUSE
from sojourn.protocol.wire import DATA_NOTE, VisitReport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from coordinator.records import TourPlan
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore

NAMES_ROOM = 400
"""Characters for the devices of a tour that is refused."""
MORE_ATTEMPTS = 4
"""Attempts of a hop that are believed beyond those that the tour's policy asks for: restarts may bring some."""
REPORT_BYTES = 64 << 20
"""Of the reports of a tour."""
log = logging.getLogger(__name__)


class CloseRound(msgspec.Struct, frozen=True):
    """All tours have arrived: make the job's next state of them."""

    state: JobState
    seconds: float
    traffic: int
    at: Moment | msgspec.UnsetType = msgspec.UNSET
    measure: bool = True
    """Whether the model is tested before anything else is done; else that is work of its own (`MeasureRound`)."""


def tour_model(state: JobState, tour: TourPlan, blobs: BlobStore, kit: Kit) -> NDArray[np.float32] | None:
    """A tour's model, if it has one; a difference is added to the exact start, so that rounding does not pile up."""
    arrived = state.arrived.get(tour.number)
    ref = arrived.vectors.get("model") if arrived else None
    if ref is None:
        return None
    vector = vectors.load(blobs, ref, kit.model)
    if not ref.delta:
        return vector
    with np.errstate(all="ignore"):  # what is not finite is refused
        start = vectors.load(blobs, state.exact_vector(tour.start["model"]), kit.model)
        return vectors.moved(start, vector, kit.model)


def returned_by(
    state: JobState, tour: TourPlan, names: tuple[str, ...], blobs: BlobStore, kit: Kit
) -> dict[str, NDArray[np.float32]]:
    """The sums of what the tour's devices returned besides their models."""
    arrived = state.arrived.get(tour.number)
    found = {name: arrived.vectors[name] for name in names if name in arrived.vectors} if arrived else {}
    return {name: vectors.load(blobs, ref, kit.model) for name, ref in found.items()}


def told_by(state: JobState, tour: TourPlan) -> dict[str, Ref]:
    """What the device of a tour told of itself, for the finisher."""
    arrived = state.arrived.get(tour.number)
    names = state.strategy.objective.tells
    return {name: arrived.vectors[name] for name in names if name in arrived.vectors} if arrived else {}


def told_vectors(state: JobState, tour: TourPlan, blobs: BlobStore, kit: Kit) -> dict[str, NDArray[np.float32]]:
    """The same as vectors; InvalidBlob where one has not the length that it must have, or is missing."""
    if not (names := state.strategy.objective.tells) or state.phase != "train":
        return {}
    refs = told_by(state, tour)
    if lacking := [name for name in names if name not in refs]:
        raise InvalidBlob(f"the vector {lacking[0]!r} did not come with the model")
    objective = state.strategy.objective
    return {name: vectors.load(blobs, ref, spec_of_vector(name, objective, kit)) for name, ref in refs.items()}


def reports_of(state: JobState, tour: TourPlan, blobs: BlobStore) -> list[VisitReport]:
    """How each visit of a tour ended: only of devices and hops that the tour has, and each hop done once."""
    visits, most = len(tour.hops) * max(1, waves_of(state)), state.settings.gate.bounds(1.0)
    attempts = 1 + state.settings.tours.retries + len(tour.spares) + MORE_ATTEMPTS
    found, done, tried = [], set(), Counter[int]()
    strange = 0
    for report in _reports(state, tour, blobs):
        known = report.device in tour.hops or report.device in tour.spares
        if not known or report.hop >= visits or report.hop in done or tried[report.hop] >= attempts:
            strange += 1
            continue
        tried[report.hop] += 1
        if report.status == "done":
            done.add(report.hop)
        found.append(msgspec.structs.replace(report, samples=counted_samples(report.samples, most)))
    if strange:
        log.warning("site %s reports %d visits that its tour %d does not have", tour.site, strange, tour.number)
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
    """Some of the strides, from everywhere among them: what the gate compares the next round with."""
    ordered = sorted(strides)
    return tuple(ordered[:: max(1, len(ordered) // 128)][:256])


def visit_alone(tour: TourPlan, reports: Iterable[VisitReport]) -> VisitReport | None:
    """The visit that a tour of one device consists of; a spare may have stood in."""
    done = [report for report in reports if report.status == "done"]
    return done[0] if len(tour.hops) == len(done) == 1 else None


def mishaps_of(
    state: JobState, tour: TourPlan, reports: Iterable[VisitReport], refused: str | None = None
) -> list[Mishap]:
    """What went wrong on a tour; `refused` is why the tour itself counts for nothing."""
    reports = list(reports)
    found, alone = [], visit_alone(tour, reports)
    if refused and alone:
        own = alone.reason.startswith(DATA_NOTE)  # what the device says of its data explains, and does not decide
        why = f"{refused}; {alone.reason}" if own else f"{alone.reason}, and {refused}" if alone.reason else refused
        found.append(Mishap(alone.device, f"refused when its model came from site {tour.site}, {why}"))
    elif refused:
        done = sum(each.status == "done" for each in reports)
        whole = f"its tour of {names(tour.hops, NAMES_ROOM)} is refused, {refused}"
        found.append(Mishap(f"site {tour.site}", whole, max(1, done)))
    found += [Mishap(each.device, f"{each.status}, {each.reason}") for each in reports if each.status != "done"]
    if reason := state.given_up.get(tour.number):
        found += [Mishap(device, f"not visited, site {tour.site}: {reason}") for device in dict.fromkeys(tour.hops)]
    return found


def flagged_tour(tour: TourPlan, flagged: str) -> Mishap:
    """What the coordinator would have refused, where `gate = "report"`."""
    if len(tour.hops) == 1:
        return Mishap(tour.hops[0], flagged)
    return Mishap(f"site {tour.site}", f"its tour of {names(tour.hops, NAMES_ROOM)} {flagged}")


def outcomes_of(
    tour: TourPlan,
    reports: Iterable[VisitReport],
    refused: str | None,
    given_up: str | None,
    flagged: str | None = None,
) -> list[VisitOutcome]:
    """How each visit of a tour ended, as it is remembered; of a tour that was given up, whom it was to visit.

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
    """A verdict on the tour stands before a visit's own reason; of two flags the visit's own is enough."""
    if verdict and verdict.startswith(WOULD_REFUSE) and own.startswith(WOULD_REFUSE):
        return (own,)
    return (verdict or "", own)


def traffic_of(work: CloseRound) -> int:
    """The payload bytes of a round: between cloud and sites, and between sites and devices."""
    return sum_within([work.traffic, *(toured.traffic for toured in work.state.arrived.values())], MOST_BYTES)
