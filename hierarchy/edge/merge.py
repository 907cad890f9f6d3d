"""Client-edge-cloud (HierFAVG): the models of a wave are merged at the edge server.

All devices of the tour train from the same model, and their mean is what all of them train from in the next wave.
Visits that came to nothing are left out of their wave's mean; a wave without any result leaves the model as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hierarchy.edge.rules import not_finite
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.weights import within_share
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref, Task

if TYPE_CHECKING:
    from hierarchy.edge.records import TourState
    from sojourn.protocol.messages import Tour
    from sojourn.store.blobs import BlobStore


class WaveMerge(msgspec.Struct, frozen=True):
    """Make one model of the models of a wave, which are exact, in hop order."""

    kit: Ref
    models: tuple[Ref, ...]
    weights: tuple[float, ...]
    task: Task


class Merged(msgspec.Struct, frozen=True):
    """The mean: exact, and as it travels to the devices of the next wave."""

    vectors: dict[str, Ref]
    handout: dict[str, Ref]


def objection(tour: Tour) -> str | None:
    """Why a tour cannot be led in waves."""
    if not tour.merges:
        return None
    if tour.task.kind != "train":
        return "only trained models can be merged"
    if returns := (*tour.task.objective.returns, *tour.task.objective.tells):
        return f"there is no merging of {' and '.join(returns)} at an edge server"
    return None


def merge_of(tour: TourState) -> WaveMerge | None:
    """What is to be merged when a wave is over; a device without samples has no say in a mean by samples.

    By samples, no device has more than its share of the say.
    """
    kept = [result for _, result in sorted(tour.results.items()) if result]
    if tour.order.weighting == "samples":
        kept = [result for result in kept if result.samples > 0]
        weights = tuple(within_share([float(result.samples) for result in kept], tour.bounds.most_share))
    else:
        weights = (1.0,) * len(kept)
    return WaveMerge(tour.order.kit, tuple(it.model for it in kept), weights, tour.order.task) if kept else None


def merge(work: WaveMerge, blobs: BlobStore) -> Merged:
    """The weighted mean, summed in hop order."""
    kit = unpack_blob(blobs.read(work.kit.digest), Kit)
    mean = vectors.mean((vectors.load(blobs, ref, kit.model) for ref in work.models), work.weights)
    if fault := not_finite(mean, "the mean"):
        raise InvalidBlob(fault)
    exact = vectors.save(blobs, mean, "float32", kit.model)
    if work.task.encoding == "float32":
        return Merged({"model": exact}, {"model": exact})
    return Merged({"model": exact}, {"model": vectors.save(blobs, mean, work.task.encoding, kit.model)})
