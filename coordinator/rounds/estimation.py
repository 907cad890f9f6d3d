"""Estimate devices: request their signatures, check the replies, and build the table that arrangers use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.fleet_records import worth_keeping
from coordinator.job_state import JobState
from coordinator.records import INITIAL, DevicesEstimated, RoundFailed, TourPlan
from coordinator.rounds.device_signatures import HopCheck
from coordinator.rounds.evaluation import Evaluator
from coordinator.rounds.results import (
    CloseRound,
    failures_of,
    outcomes_of,
    reports_of,
    sample_of,
    tour_model,
    traffic_of,
)
from coordinator.rounds.round_messages import Failure, grouped, in_a_sentence, within_room
from coordinator.rounds.tour_check import NO_SIGNATURES, TourCheck
from hierarchy.arranging.candidates import reach_table
from hierarchy.arranging.rows import rows
from sojourn.model import vectors
from sojourn.model.layers import classifier_weights
from sojourn.parts import (
    ClassCountEstimator,
    ClassifierEstimator,
    ConfidenceEstimator,
    Estimator,
    OwnEstimator,
    SignatureEstimator,
    UpdateEstimator,
)
from sojourn.parts.custom_code import load
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref, VisitReport
from sojourn.store.blobs import BlobStore, ref_of

Reach = Mapping[str, tuple[str, ...]]

MAX_COUNT = 1 << 53
"""The largest sample count that a float represents exactly."""
MAX_TRIES = 2
"""Number of unanswered attempts after which a device is skipped."""


def unknown(estimator: Estimator, state: JobState, here: Sequence[str], *, again: bool) -> list[str]:
    """Return the devices that must still be estimated; with `again`, including those that gave no answer so far."""
    if not estimator.sizes or all(map(_known_by(estimator, state).__contains__, here)):
        return []
    asked = [device for device in here if again or state.silent.get(device, 0) < MAX_TRIES]
    return [device for device in asked if device not in _known_by(estimator, state)]


def known(estimator: Estimator, state: JobState, here: tuple[str, ...]) -> tuple[str, ...]:
    """Return the devices that can be arranged; the same tuple if all can."""
    them = _known_by(estimator, state)
    return here if not estimator.sizes or all(map(them.__contains__, here)) else tuple(filter(them.__contains__, here))


def _known_by(estimator: Estimator, state: JobState) -> Mapping[str, object]:
    """Return the estimates of devices."""
    if _samples_only(estimator):
        return state.samples
    return state.weights if estimator.weights else state.signatures


def rows_of(estimator: Estimator, state: JobState, here: Sequence[str], blobs: BlobStore) -> NDArray[np.float64] | None:
    """Return the arranger's view of each device; None if the estimator collects nothing."""
    if not estimator.rows:
        return None
    if estimator.weights:
        found = [_weights(state.weights.get(device), blobs) for device in here]
        width = max(1, *(len(row) for row in found)) if found else 1
        # A device without a visit so far has a row of zeros.
        raw = np.array([row if len(row) else np.zeros(width) for row in found], np.float64)
    else:
        raw = np.array([state.signatures[device] for device in here], np.float64)
    return rows(estimator, raw) if here else np.empty((0, 1))


def _weights(ref: Ref | None, blobs: BlobStore) -> NDArray[np.float32]:
    return np.frombuffer(blobs.read(ref.digest), "<f4") if ref else np.empty(0, np.float32)


def keep_weights(vector: NDArray[np.float32], blobs: BlobStore) -> Ref:
    """Store an estimate that is a vector."""
    data = vector.astype("<f4", copy=False).tobytes()
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    return ref


def estimated(
    work: CloseRound, blobs: BlobStore, evaluator: Evaluator, hops: HopCheck = NO_SIGNATURES
) -> DevicesEstimated | RoundFailed:
    """Compute the results of an estimation; it fails if no device has an estimate after it."""
    state, estimator = work.state, work.state.strategy.estimator
    reported = [(tour, reports_of(state, tour, blobs)) for tour in state.tours]
    check = TourCheck(state, reported, blobs, evaluator, hops)
    signatures: dict[str, tuple[float, ...]] = {}
    weights: dict[str, Ref] = {}
    samples, failures, visited = {}, [], []
    for tour, reports in reported:
        (device,), refused = tour.hops, check.refusal(tour)
        failures += failures_of(state, tour, reports, refused)
        visited += outcomes_of(tour, reports, refused, state.given_up.get(tour.number))
        done = next((report for report in reports if report.status == "done"), None)
        if done is None or refused:
            continue
        samples[device] = done.samples
        estimate = _estimate(estimator, state, tour, done, blobs, evaluator)
        if estimate is None:
            continue
        if fault := _fault(estimator, estimate, evaluator.kit(state)):
            failures.append(Failure(device, f"its answer is {fault}"))
        elif estimator.weights:
            weights[device] = keep_weights(estimate.astype(np.float32), blobs)
        else:
            signatures[device] = tuple(float(number) for number in estimate)
    found = samples if _samples_only(estimator) else {**signatures, **weights}
    silent = tuple(tour.hops[0] for tour in state.tours if tour.hops[0] not in found)
    # The latest failures come first: a device that keeps declining may have a new reason.
    lines = within_room([*grouped(_not_estimated(failures)), *state.unestimated], state.name)
    if not found and not _known_by(estimator, state):
        return RoundFailed(
            state.name,
            in_a_sentence("no device could be estimated", grouped(failures)),
            lines,
            traffic_of(work),
            len(failures),
            silent=silent,
            norms=() if state.history else sample_of(check.strides),
            visited=worth_keeping(visited),
        )
    return DevicesEstimated(
        state.name,
        signatures,
        silent,
        lines,
        traffic_of(work),
        samples,
        weights,
        sample_of(check.strides),
        len(failures),
        worth_keeping(visited),
    )


def _not_estimated(failures: list[Failure]) -> list[Failure]:
    """Return the failures with their reasons marked as failed estimates."""
    return [Failure(it.name, f"not estimated: {it.reason}") for it in failures]


def _estimate(
    estimator: Estimator, state: JobState, tour: TourPlan, done: VisitReport, blobs: BlobStore, evaluator: Evaluator
) -> NDArray[np.float64] | None:
    """Return a device's estimate, from the model that it trained or from the numbers that it reports.

    Reported numbers count only if the job lets devices compute them; otherwise a device could choose its estimate.
    """
    if on_device(estimator):
        return None if done.signature is None else np.array(done.signature, np.float64)
    kit = evaluator.kit(state)
    model = tour_model(state, tour, blobs, kit)
    if model is None:
        return None
    match estimator:
        case SignatureEstimator() | ConfidenceEstimator():
            return np.array(evaluator.signature(state, model), np.float64)
        case ClassifierEstimator():
            return classifier_weights(kit, model, estimator.layers).astype(np.float64)
        case UpdateEstimator():
            start, size = vectors.load(blobs, state.exact_vector(INITIAL), kit.model), kit.model.trainable_size
            return (model - start)[:size].astype(np.float64)
        case OwnEstimator():
            graphs, exemplars = evaluator.graphs(state), evaluator.exemplars(state)
            return np.asarray(load(estimator, "estimate").estimate(graphs, model, exemplars), np.float64)
        case _:
            return None


def on_device(estimator: Estimator) -> bool:
    """Return whether devices compute their estimates themselves, so that the coordinator cannot verify them."""
    return isinstance(estimator, ClassCountEstimator) or getattr(estimator, "where", "server") == "device"


def _fault(estimator: Estimator, estimate: NDArray[np.float64], kit: Kit) -> str | None:
    """Return what is wrong with a reported estimate, or None."""
    classes = kit.learns.strata.count
    if not np.isfinite(estimate).all() or (estimator.by_class and len(estimate) != classes):
        return f"not {classes} finite numbers"
    if (
        isinstance(estimator, SignatureEstimator | ConfidenceEstimator)
        and not ((estimate >= 0) & (estimate <= 1)).all()
    ):
        return "not made of probabilities from 0 to 1"
    if isinstance(estimator, ClassCountEstimator) and ((estimate < 0) | (estimate > MAX_COUNT)).any():
        return f"not made of counts from 0 to {MAX_COUNT}"
    if isinstance(estimator, ClassifierEstimator):
        there = len(classifier_weights(kit, np.zeros(kit.model.size, np.float32), estimator.layers))
        return None if len(estimate) == there else f"{len(estimate)} numbers, but the classifier has {there}"
    return None


def _samples_only(estimator: Estimator) -> bool:
    """Return whether the number of its samples suffices as a device's estimate."""
    return estimator.from_visits or not estimator.rows


@dataclass(frozen=True, eq=False)
class ConnectedDevices:
    """The devices that may take part, sorted by name, and the devices that each site reaches."""

    devices: tuple[str, ...]
    names: frozenset[str]
    """The same names as a set."""
    reach: dict[str, frozenset[str]]
    table: NDArray[np.bool_]
    """A row for each device, a column for each site, both sorted by name."""


class DeviceTable:
    """The devices that may take part, updated only where something has changed since the previous round."""

    def __init__(self) -> None:
        self._last_request: tuple[Reach, Sequence[str]] | None = None
        self._here = connected_devices({}, ())
        self._known: list[tuple[float, ...]] = []
        self._rows: tuple[Estimator, NDArray[np.float64]] | None = None

    def here(self, reach: Reach, unwilling: Sequence[str]) -> ConnectedDevices:
        """Return the devices that may take part; an identical `reach` object means that nothing has changed."""
        if self._last_request is None or self._last_request[0] is not reach or self._last_request[1] != unwilling:
            self._here, self._last_request = connected_devices(reach, unwilling), (reach, unwilling)
        return self._here

    def rows(
        self, estimator: Estimator, state: JobState, here: Sequence[str], blobs: BlobStore
    ) -> NDArray[np.float64] | None:
        """Return the arranger's view of each device; None if the estimator collects nothing."""
        if estimator.weights or not estimator.rows:
            return rows_of(estimator, state, here, blobs)
        known = [state.signatures[device] for device in here]
        # Estimates that have not changed are the same objects, so this comparison is fast.
        if self._rows is None or self._rows[0] != estimator or known != self._known:
            rows = rows_of(estimator, state, here, blobs)
            if rows is None:
                return None
            self._known, self._rows = known, (estimator, rows)
        return self._rows[1]


def connected_devices(reach: Reach, unwilling: Sequence[str]) -> ConnectedDevices:
    """Return the devices that sites reach, without the excluded ones."""
    names = frozenset().union(*reach.values()).difference(unwilling)
    devices = tuple(sorted(names))
    reached = {site: names.intersection(there) for site, there in reach.items()}
    return ConnectedDevices(devices, names, reached, reach_table(devices, reached))
