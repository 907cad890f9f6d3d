"""What the coordinator knows of devices: what it asks for, what it makes of the answers, and the rows arrangers see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.records import INITIAL, DevicesEstimated
from coordinator.rounds.results import LISTED, failures_of, reports_of, tour_model, traffic_of
from hierarchy.arranging.rows import rows
from sojourn.model import vectors
from sojourn.model.classifier import classifier_weights
from sojourn.parts import (
    ClassifierEstimator,
    ConfidenceEstimator,
    OwnEstimator,
    SignatureEstimator,
    UpdateEstimator,
)
from sojourn.parts.own import load
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.records import TourPlan
    from coordinator.rounds.evaluation import Evaluator
    from coordinator.rounds.results import CloseRound
    from coordinator.state import JobState
    from sojourn.parts import Estimator
    from sojourn.protocol.wire import Ref, VisitReport
    from sojourn.store.blobs import BlobStore

TRIES = 2
"""A device that gave no answer so often is left out."""


def unknown(estimator: Estimator, state: JobState, here: Sequence[str], *, again: bool) -> list[str]:
    """The devices that are still to be asked; `again`, also those that gave no answer so far."""
    if not estimator.sizes:
        return []
    asked = [device for device in here if again or state.silent.get(device, 0) < TRIES]
    return [device for device in asked if not _is_known(estimator, state, device)]


def known(estimator: Estimator, state: JobState, here: Sequence[str]) -> list[str]:
    """The devices that can be arranged."""
    return [device for device in here if not estimator.sizes or _is_known(estimator, state, device)]


def _is_known(estimator: Estimator, state: JobState, device: str) -> bool:
    if _samples_only(estimator):
        return device in state.samples
    return device in (state.weights if estimator.weights else state.signatures)


def rows_of(estimator: Estimator, state: JobState, here: Sequence[str], blobs: BlobStore) -> NDArray[np.float64] | None:
    """What the arranger sees of each device; None where nothing was asked."""
    if not estimator.rows:
        return None
    if estimator.weights:
        found = [_weights(state.weights.get(device), blobs) for device in here]
        width = max(1, *(len(row) for row in found)) if found else 1
        # A device that was not visited yet is a zero.
        raw = np.array([row if len(row) else np.zeros(width) for row in found], np.float64)
    else:
        raw = np.array([state.signatures[device] for device in here], np.float64)
    return rows(estimator, raw) if here else np.empty((0, 1))


def _weights(ref: Ref | None, blobs: BlobStore) -> NDArray[np.float32]:
    return np.frombuffer(blobs.read(ref.digest), "<f4") if ref else np.empty(0, np.float32)


def keep_weights(vector: NDArray[np.float32], blobs: BlobStore) -> Ref:
    """Store what a device is known by where that is a vector."""
    data = vector.astype("<f4", copy=False).tobytes()
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    return ref


def estimated(work: CloseRound, blobs: BlobStore, evaluator: Evaluator) -> DevicesEstimated:
    """Work out what an estimation found."""
    state, estimator = work.state, work.state.strategy.estimator
    signatures: dict[str, tuple[float, ...]] = {}
    weights: dict[str, Ref] = {}
    samples, failures = {}, []
    for tour in state.tours:
        (device,), reports = tour.hops, reports_of(state, tour, blobs)
        failures += failures_of(state, tour, reports)
        done = next((report for report in reports if report.status == "done"), None)
        if done is None:
            continue
        samples[device] = done.samples
        answer = _answer(estimator, state, tour, done, blobs, evaluator)
        if answer is None:
            continue
        if not np.isfinite(answer).all() or (estimator.by_class and len(answer) != len(evaluator.kit(state).classes)):
            failures.append(f"{device}: its answer is not {len(evaluator.kit(state).classes)} finite numbers")
        elif estimator.weights:
            weights[device] = keep_weights(answer.astype(np.float32), blobs)
        else:
            signatures[device] = tuple(float(number) for number in answer)
    found = samples if _samples_only(estimator) else {**signatures, **weights}
    silent = tuple(tour.hops[0] for tour in state.tours if tour.hops[0] not in found)
    listed = tuple(failures[:LISTED])
    return DevicesEstimated(state.name, signatures, silent, listed, traffic_of(work), samples, weights)


def _answer(
    estimator: Estimator, state: JobState, tour: TourPlan, done: VisitReport, blobs: BlobStore, evaluator: Evaluator
) -> NDArray[np.float64] | None:
    """What a device's answer says of it: its own figures, or what the model that it trained tells."""
    if done.signature is not None:
        return np.array(done.signature, np.float64)
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
            return (model - vectors.load(blobs, state.exact_vector(INITIAL), kit.model)).astype(np.float64)
        case OwnEstimator():
            graphs, exemplars = evaluator.graphs(state), evaluator.exemplars(state)
            return np.asarray(load(estimator, "estimate").estimate(graphs, model, exemplars), np.float64)
        case _:
            return None


def _samples_only(estimator: Estimator) -> bool:
    """Whether a device is known as soon as it has said how many samples it has."""
    return estimator.from_visits or not estimator.rows
