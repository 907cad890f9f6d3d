"""What a device finds out about itself when the coordinator asks, before it arranges devices into tours.

Estimation trains with the plain loss from the model that all devices get, and never touches what a device remembers.
Where the answer is worked out on the device, no model goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edge_agent.training.descent import descended, metrics
from edge_agent.training.handover import model_of, save_model
from edge_agent.training.objectives import Plain
from edge_agent.training.reasons import Unsupported
from edge_agent.training.work import Trained
from sojourn.errors import DataError
from sojourn.model.classifier import classifier_weights
from sojourn.model.exemplars import Exemplars, signature
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
from sojourn.protocol.limits import MOST_FIGURE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edge_agent.training.descent import EpochResult, Prepared, Progress
    from sojourn.protocol.messages import Visit
    from sojourn.protocol.wire import Task
    from sojourn.store.blobs import BlobStore

LONGEST = 4096
"""How many numbers a message takes as a signature."""


def estimate(visit: Visit, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Answer what the task's estimator asks; the agent has checked before that the owner allows it."""
    match visit.task.estimator:
        case SizeEstimator() | UpdateEstimator(epochs=0):
            return _answer(prepared, None)
        case ClassCountEstimator():
            return _answer(prepared, class_counts(prepared))
        case _:
            return _trained(visit, blobs, prepared, progress)


def trains(task: Task) -> bool:
    """Whether the device goes through its samples for the task: some estimators only count them."""
    match task.estimator if task.kind == "estimate" else None:
        case SizeEstimator() | ClassCountEstimator() | UpdateEstimator(epochs=0):
            return False
        case _:
            return True


def class_counts(prepared: Prepared) -> tuple[float, ...]:
    """How many samples of each of the job's classes or strata there are."""
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
    """What a device tells when it has trained from start to end: a mark, or the model itself."""
    start, end = start_and_end
    mark = _mark(visit, blobs, prepared, end)
    if mark and not all(abs(figure) <= MOST_FIGURE for figure in mark):
        raise DataError("what the training found is not finite: it has diverged on the data here")
    sent = {} if mark else {"model": save_model(blobs, start, end, visit.task, prepared.kit.model)}
    return Trained(sent, len(prepared.samples), metrics(passed), mark, {})


def _mark(visit: Visit, blobs: BlobStore, prepared: Prepared, w: NDArray[np.float32]) -> tuple[float, ...] | None:
    """What the device tells instead of its model, where the estimator wants it so."""
    match visit.task.estimator:
        case SignatureEstimator(where="device") | ConfidenceEstimator(where="device"):
            ref = visit.vectors.get("exemplars")
            if ref is None:
                raise Unsupported("the visit asks for answers on exemplars and brings none")
            exemplars = unpack_blob(blobs.read(ref.digest), Exemplars)
            return signature(prepared.graphs, w, exemplars, prepared.kit.learns.strata.count)
        case ClassifierEstimator(where="device") as asked:
            weights = classifier_weights(prepared.kit, w, asked.layers)
            if len(weights) > LONGEST:
                raise Unsupported(
                    f"the fully connected layers ({asked.layers}) hold {len(weights)} numbers, a message takes "
                    f'{LONGEST}: use fewer layers, or the estimator with where = "server"'
                )
            return tuple(map(float, weights))
        case _:
            return None


def _answer(prepared: Prepared, mark: tuple[float, ...] | None) -> Trained:
    return Trained({}, len(prepared.samples), {}, mark, {})
