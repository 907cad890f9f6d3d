"""What the coordinator knows of devices: what it asks for, what it makes of the answers, and the rows arrangers see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.fleet_records import worth_keeping
from coordinator.records import INITIAL, DevicesEstimated, RoundFailed
from coordinator.rounds.failure_lines import Mishap, grouped, in_a_sentence, within_room
from coordinator.rounds.results import mishaps_of, outcomes_of, reports_of, sample_of, tour_model, traffic_of
from coordinator.rounds.tour_check import NOBODY_SIGNS, TourCheck
from hierarchy.arranging.rows import rows
from sojourn.model import vectors
from sojourn.model.classifier import classifier_weights
from sojourn.parts import (
    ClassCountEstimator,
    ClassifierEstimator,
    ConfidenceEstimator,
    OwnEstimator,
    SignatureEstimator,
    UpdateEstimator,
)
from sojourn.parts.own import load
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.records import TourPlan
    from coordinator.rounds.evaluation import Evaluator
    from coordinator.rounds.hop_check import HopCheck
    from coordinator.rounds.results import CloseRound
    from coordinator.state import JobState
    from sojourn.parts import Estimator
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import Ref, VisitReport
    from sojourn.store.blobs import BlobStore

MOST_COUNTED = 1 << 53
"""A count of samples that is still exact as a float."""
TRIES = 2
"""A device that gave no answer so often is left out."""


def unknown(estimator: Estimator, state: JobState, here: Sequence[str], *, again: bool) -> list[str]:
    """The devices that are still to be asked; `again`, also those that gave no answer so far."""
    if not estimator.sizes or all(map(_known_by(estimator, state).__contains__, here)):
        return []
    asked = [device for device in here if again or state.silent.get(device, 0) < TRIES]
    return [device for device in asked if device not in _known_by(estimator, state)]


def known(estimator: Estimator, state: JobState, here: tuple[str, ...]) -> tuple[str, ...]:
    """The devices that can be arranged; the very same, if all can."""
    them = _known_by(estimator, state)
    return here if not estimator.sizes or all(map(them.__contains__, here)) else tuple(filter(them.__contains__, here))


def _known_by(estimator: Estimator, state: JobState) -> Mapping[str, object]:
    """What devices are known by."""
    if _samples_only(estimator):
        return state.samples
    return state.weights if estimator.weights else state.signatures


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


def estimated(
    work: CloseRound, blobs: BlobStore, evaluator: Evaluator, hops: HopCheck = NOBODY_SIGNS
) -> DevicesEstimated | RoundFailed:
    """Work out what an estimation found; it has failed where no device is known after it."""
    state, estimator = work.state, work.state.strategy.estimator
    reported = [(tour, reports_of(state, tour, blobs)) for tour in state.tours]
    check = TourCheck(state, reported, blobs, evaluator, hops)
    signatures: dict[str, tuple[float, ...]] = {}
    weights: dict[str, Ref] = {}
    samples, mishaps, visited = {}, [], []
    for tour, reports in reported:
        (device,), refused = tour.hops, check.refusal(tour)
        mishaps += mishaps_of(state, tour, reports, refused)
        visited += outcomes_of(tour, reports, refused, state.given_up.get(tour.number))
        done = next((report for report in reports if report.status == "done"), None)
        if done is None or refused:
            continue
        samples[device] = done.samples
        answer = _answer(estimator, state, tour, done, blobs, evaluator)
        if answer is None:
            continue
        if fault := _fault(estimator, answer, evaluator.kit(state)):
            mishaps.append(Mishap(device, f"its answer is {fault}"))
        elif estimator.weights:
            weights[device] = keep_weights(answer.astype(np.float32), blobs)
        else:
            signatures[device] = tuple(float(number) for number in answer)
    found = samples if _samples_only(estimator) else {**signatures, **weights}
    silent = tuple(tour.hops[0] for tour in state.tours if tour.hops[0] not in found)
    # What went wrong last comes first: who declines again and again has news to tell.
    failures = within_room([*grouped(_asked(mishaps)), *(state.unestimated or ())], state.name)
    if not found and not _known_by(estimator, state):
        return RoundFailed(
            state.name,
            in_a_sentence("no device could be estimated", grouped(mishaps)),
            failures,
            traffic_of(work),
            len(mishaps),
            silent=silent,
            norms=() if state.history else sample_of(check.strides),
            visited=worth_keeping(visited),
        )
    return DevicesEstimated(
        state.name,
        signatures,
        silent,
        failures,
        traffic_of(work),
        samples,
        weights,
        sample_of(check.strides) or msgspec.UNSET,
        len(mishaps),
        worth_keeping(visited),
    )


def _asked(mishaps: list[Mishap]) -> list[Mishap]:
    """The same with the word for what the devices were asked."""
    return [Mishap(it.who, f"not estimated: {it.why}") for it in mishaps]


def _answer(
    estimator: Estimator, state: JobState, tour: TourPlan, done: VisitReport, blobs: BlobStore, evaluator: Evaluator
) -> NDArray[np.float64] | None:
    """What a device's answer says of it: what the model that it trained tells, or its own figures.

    Its own figures count only where the job lets devices work them out: elsewhere it could choose how it looks.
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
            start, learnt = vectors.load(blobs, state.exact_vector(INITIAL), kit.model), kit.model.learnt
            return (model - start)[:learnt].astype(np.float64)
        case OwnEstimator():
            graphs, exemplars = evaluator.graphs(state), evaluator.exemplars(state)
            return np.asarray(load(estimator, "estimate").estimate(graphs, model, exemplars), np.float64)
        case _:
            return None


def on_device(estimator: Estimator) -> bool:
    """Whether devices work out themselves what they are known by, so that the coordinator has only their word."""
    return isinstance(estimator, ClassCountEstimator) or getattr(estimator, "where", "server") == "device"


def _fault(estimator: Estimator, answer: NDArray[np.float64], kit: Kit) -> str | None:
    """What is wrong with an answer; a device's word may not be of another kind than what it stands for."""
    classes = kit.learns.strata.count
    if not np.isfinite(answer).all() or (estimator.by_class and len(answer) != classes):
        return f"not {classes} finite numbers"
    if isinstance(estimator, SignatureEstimator | ConfidenceEstimator) and not ((answer >= 0) & (answer <= 1)).all():
        return "not made of probabilities from 0 to 1"
    if isinstance(estimator, ClassCountEstimator) and ((answer < 0) | (answer > MOST_COUNTED)).any():
        return f"not made of counts from 0 to {MOST_COUNTED}"
    if isinstance(estimator, ClassifierEstimator):
        there = len(classifier_weights(kit, np.zeros(kit.model.size, np.float32), estimator.layers))
        return None if len(answer) == there else f"{len(answer)} numbers, and the classifier has {there}"
    return None


def _samples_only(estimator: Estimator) -> bool:
    """Whether a device is known as soon as it has said how many samples it has."""
    return estimator.from_visits or not estimator.rows
