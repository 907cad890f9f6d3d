"""Planning and closing rounds: where a strategy's parts meet. Work on vectors and names; no role, no network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator import aggregators
from coordinator.coordinator_records import DevicesEstimated, JobState, RoundClosed, RoundPlanned, TourPlan
from coordinator.job import Job, read_job
from hierarchy.arrangement import ClientSet, Roll, arrange, check, deal_spares, quality_of
from sojourn import vectors
from sojourn.envelope import unpack_blob
from sojourn.errors import InvalidBlob, InvalidMessage
from sojourn.parts import NoEstimator
from sojourn.randomness import derive
from sojourn.wire import RoundReport, VisitReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from coordinator.evaluation import Evaluator
    from coordinator.strategies import Strategy
    from sojourn.blobs import BlobStore
    from sojourn.messages import Toured
    from sojourn.spec import Kit
    from sojourn.wire import Ref

TRIES = 2
"""A device that gave no signature so often is left out."""
SAID = 8
"""So many failures of a round are told one by one."""
LINE = 200
"""Characters of each."""


class PlanRound(msgspec.Struct, frozen=True):
    """Plan the next round of a job for the devices that the sites have now."""

    job: JobState
    reach: dict[str, tuple[str, ...]]


class CloseRound(msgspec.Struct, frozen=True):
    """All tours have arrived: make the job's next state of them."""

    job: JobState
    seconds: float
    traffic: int


class NotYet(msgspec.Struct, frozen=True):
    """The round cannot be planned with the devices that are here now."""

    reason: str


def plan_round(work: PlanRound) -> RoundPlanned | NotYet:
    """Estimate the devices that are not known yet, else arrange the round's tours."""
    state, job = work.job, read_job(work.job.text, work.job.name)
    strategy = job.parts()
    reach = {site: frozenset(devices) for site, devices in work.reach.items()}
    here = sorted(set().union(*reach.values())) if reach else []
    if len(here) < job.fleet.devices:
        return NotYet(f"{job.fleet.devices} devices are needed; {len(here)} are here")
    if not isinstance(strategy.estimator, NoEstimator):
        unknown = [d for d in here if d not in state.signatures and state.silent.get(d, 0) < TRIES]
        if unknown:
            return _estimation(state, unknown, reach)
        here = [device for device in here if device in state.signatures]
    return _training(state, job, strategy, _roll(state, strategy, here, reach))


def _roll(state: JobState, strategy: Strategy, here: list[str], reach: Mapping[str, frozenset[str]]) -> Roll:
    known = None
    if not isinstance(strategy.estimator, NoEstimator):
        known = np.array([state.signatures[device] for device in here], np.float64)
        known = known if here else np.empty((0, 1))
    return Roll(tuple(here), reach, known)


def _estimation(state: JobState, unknown: list[str], reach: Mapping[str, frozenset[str]]) -> RoundPlanned:
    """Every device by itself, each at the first site that reaches it."""
    sites = {device: min(site for site, devices in reach.items() if device in devices) for device in unknown}
    tours = tuple(
        TourPlan(state.next_tour + number, sites[device], (device,)) for number, device in enumerate(unknown)
    )
    return RoundPlanned(state.name, "estimate", tours, {})


def _training(state: JobState, job: Job, strategy: Strategy, roll: Roll) -> RoundPlanned | NotYet:
    seed = derive(job.seed, "arrange", state.round)
    if state.arranged and (state.round - 1) % strategy.schedule.rearrange_every:
        sets = _kept(state.arranged, roll)
    else:
        if reason := check(strategy.arranger, roll):
            return NotYet(reason)
        sets = arrange(strategy.arranger, roll, seed)
    if not sets:
        return NotYet("none of the arranged devices is here")
    spares = deal_spares(sets, roll, job.tours.spares if job.tours.on_lost_visit == "swap" else 0, seed)
    tours = tuple(
        TourPlan(state.next_tour + number, each.site, each.devices, extra)
        for number, (each, extra) in enumerate(zip(sets, spares, strict=True))
    )
    return RoundPlanned(state.name, "train", tours, quality_of(sets, roll))


def _kept(arranged: tuple[TourPlan, ...], roll: Roll) -> tuple[ClientSet, ...]:
    """The tours of before, less the devices that are no longer there."""
    here = frozenset(roll.devices)
    kept = [
        ClientSet(tour.site, tuple(d for d in tour.hops if d in here and d in roll.reach.get(tour.site, ())))
        for tour in arranged
    ]
    return tuple(each for each in kept if each.devices)


def close_round(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> RoundClosed | DevicesEstimated:
    """Aggregate in plan order and evaluate; or, after an estimation, work out the signatures."""
    return _estimated(work, blobs, evaluator) if work.job.phase == "estimate" else _closed(work, blobs, evaluator)


def _estimated(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> DevicesEstimated:
    state, found, failures = work.job, {}, []
    kit = evaluator.kit(state)
    for tour in state.tours:
        (device,), reports = tour.hops, _reports(state, tour, blobs)
        failures += _failures(state, tour, reports)
        done = next((report for report in reports if report.status == "done"), None)
        if done is None:
            continue
        mark = done.signature
        if mark is None and "model" in (arrived := state.arrived[tour.number].vectors):
            mark = evaluator.signature(state, _tour_model(arrived["model"], state, blobs, kit))
        if mark is not None and len(mark) == len(kit.classes) and np.isfinite(mark).all():
            found[device] = mark
        else:
            failures.append(f"{device}: its signature is not {len(kit.classes)} finite numbers")
    silent = tuple(tour.hops[0] for tour in state.tours if tour.hops[0] not in found)
    return DevicesEstimated(state.name, found, silent, tuple(failures[:SAID]), _traffic(work))


def _closed(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> RoundClosed:
    state, job = work.job, read_job(work.job.text, work.job.name)
    strategy, kit = job.parts(), evaluator.kit(work.job)
    reports = {tour.number: _reports(state, tour, blobs) for tour in state.tours}
    contributions = [
        aggregators.Contribution(_tour_model(arrived.vectors["model"], state, blobs, kit), arrived.samples)
        for tour in state.tours
        if (arrived := state.arrived.get(tour.number)) and "model" in arrived.vectors
    ]
    before = vectors.load(blobs, state.vectors["model"], kit.model)
    kept = {name: vectors.load(blobs, ref, kit.model) for name, ref in state.vectors.items() if name != "model"}
    model, kept = aggregators.aggregate(strategy.aggregator, before, contributions, kept)
    kept["model"] = model
    exact = {name: vectors.save(blobs, vector, "float32", kit.model) for name, vector in kept.items()}
    handout = {"model": handed_out(model, job, exact["model"], blobs, kit)}
    done = [report for each in reports.values() for report in each if report.status == "done"]
    failures = [line for tour in state.tours for line in _failures(state, tour, reports[tour.number])]
    accuracy, loss = evaluator.evaluate(state, model)
    report = RoundReport(
        state.round, accuracy, loss, len(contributions), len(done), len(failures), _traffic(work), work.seconds,
        state.quality, tuple(failures[:SAID]),
    )  # fmt: skip
    norms = tuple(sorted(report.norm for report in done if report.norm > 0)[:: max(1, len(done) // 128)][:256])
    return RoundClosed(state.name, exact, handout, norms or state.norms, report)


def handed_out(model: NDArray[np.float32], job: Job, exact: Ref, blobs: BlobStore, kit: Kit) -> Ref:
    """The model as it travels down: in the job's encoding."""
    return exact if job.encoding == "float32" else vectors.save(blobs, model, job.encoding, kit.model)


def _tour_model(ref: Ref, state: JobState, blobs: BlobStore, kit: Kit) -> NDArray[np.float32]:
    """A tour's model; a difference is added to the exact start, so that what compression lost does not pile up."""
    vector = vectors.load(blobs, ref, kit.model)
    return vectors.load(blobs, state.vectors["model"], kit.model) + vector if ref.delta else vector


def _reports(state: JobState, tour: TourPlan, blobs: BlobStore) -> list[VisitReport]:
    arrived: Toured | None = state.arrived.get(tour.number)
    if arrived is None:
        return []
    try:
        return unpack_blob(blobs.read(arrived.reports.digest), list[VisitReport])
    except (InvalidMessage, InvalidBlob) as error:
        return [VisitReport(tour.hops[0], 0, "refused", str(error)[:2000], 0, 0.0, {}, None, 0.0)]


def _failures(state: JobState, tour: TourPlan, reports: list[VisitReport]) -> list[str]:
    lines = [f"{report.device}: {report.status}, {report.reason}" for report in reports if report.status != "done"]
    if reason := state.given_up.get(tour.number):
        lines.append(f"site {tour.site}: {reason}")
    return [line[:LINE] for line in lines]


def _traffic(work: CloseRound) -> int:
    return work.traffic + sum(toured.traffic for toured in work.job.arrived.values())
