"""Estimation tasks: a device measures its data, or trains briefly, before the coordinator arranges devices into tours.

Estimation trains with the plain loss from the model that all devices receive, and does not change the memory of
objectives. If the device computes its signature itself, it does not send a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.descent import EpochResult, Prepared, Progress, descended, metrics
from edge_agent.training.messages import Trained
from edge_agent.training.objectives import Plain
from edge_agent.training.visit_vectors import Unsupported, model_of, save_model
from sojourn.errors import DataError
from sojourn.model.exemplars import Exemplars, signature
from sojourn.model.layers import classifier_weights
from sojourn.model.strata import BLOCK, counts_by_stratum
from sojourn.parts import (
    ClassCountEstimator,
    ClassifierEstimator,
    ConfidenceEstimator,
    SignatureEstimator,
    SizeEstimator,
    UpdateEstimator,
)
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.limits import MAX_NUMBER
from sojourn.protocol.messages import Visit
from sojourn.protocol.wire import Task
from sojourn.store.blobs import BlobStore

MAX_SIGNATURE = 4096
"""Maximum length of a signature in a message."""


def estimate(visit: Visit, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Perform the task's estimator; the agent has already checked that the owner allows it."""
    match visit.task.estimator:
        case SizeEstimator() | UpdateEstimator(epochs=0):
            return _answer(prepared, None)
        case ClassCountEstimator():
            return _answer(prepared, class_counts(prepared))
        case _:
            return _trained(visit, blobs, prepared, progress)


def trains(task: Task) -> bool:
    """Whether the task runs the model on the samples: some estimators only count them."""
    match task.estimator if task.kind == "estimate" else None:
        case SizeEstimator() | ClassCountEstimator() | UpdateEstimator(epochs=0):
            return False
        case _:
            return True


def class_counts(prepared: Prepared) -> tuple[float, ...]:
    """Return the number of samples in each of the job's classes or strata."""
    kit, samples = prepared.kit, prepared.samples
    if not kit.task:
        return tuple(map(float, np.bincount(samples.y, minlength=len(kit.classes))))
    rows = (np.arange(at, min(at + BLOCK, len(samples))) for at in range(0, len(samples), BLOCK))
    each = [counts_by_stratum(kit.task, *samples.batch(some, kit.input.dtype)) for some in rows]
    return tuple(map(float, np.sum(each, axis=0)))


def _trained(visit: Visit, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    start = model_of(visit, blobs, prepared.kit.model)
    end, passed = descended(start, Plain(), prepared, visit.task.training, visit.seed, progress)
    return estimate_result(visit, blobs, prepared, (start, end), passed)


def estimate_result(
    visit: Visit,
    blobs: BlobStore,
    prepared: Prepared,
    start_and_end: tuple[NDArray[np.float32], NDArray[np.float32]],
    passed: Sequence[EpochResult],
) -> Trained:
    """Return the result of an estimation that trained from start to end: a signature, or the model itself."""
    start, end = start_and_end
    found = _signature(visit, blobs, prepared, end)
    if found and not all(abs(value) <= MAX_NUMBER for value in found):
        raise DataError("the signature is not finite: training has diverged on this device's data")
    sent = {} if found else {"model": save_model(blobs, start, end, visit.task, prepared.kit.model)}
    return Trained(sent, len(prepared.samples), metrics(passed), found, {})


def _signature(visit: Visit, blobs: BlobStore, prepared: Prepared, w: NDArray[np.float32]) -> tuple[float, ...] | None:
    """Return the signature that is sent instead of the model; None if the estimator needs the model."""
    match visit.task.estimator:
        case SignatureEstimator(where="device") | ConfidenceEstimator(where="device"):
            ref = visit.vectors.get("exemplars")
            if ref is None:
                raise Unsupported("the visit needs predictions on exemplars, but contains none")
            exemplars = unpack_blob(blobs.read(ref.digest), Exemplars)
            return signature(prepared.graphs, w, exemplars, prepared.kit.learns.strata.count)
        case ClassifierEstimator(where="device") as asked:
            weights = classifier_weights(prepared.kit, w, asked.layers)
            if len(weights) > MAX_SIGNATURE:
                raise Unsupported(
                    f"the fully connected layers ({asked.layers}) have {len(weights)} parameters, a message holds "
                    f'{MAX_SIGNATURE}: use fewer layers, or the estimator with where = "server"'
                )
            return tuple(map(float, weights))
        case _:
            return None


def _answer(prepared: Prepared, found: tuple[float, ...] | None) -> Trained:
    return Trained({}, len(prepared.samples), {}, found, {})
