"""Client-edge-cloud (HierFAVG): the edge server merges the models of a wave.

All devices of the tour train the same model, and start the next wave from the mean of their models. Failed visits do
not count in the mean; a wave without any result leaves the model unchanged.
"""

from __future__ import annotations

import msgspec

from hierarchy.edge.records import TourState
from sojourn.errors import InvalidBlob
from sojourn.model import vectors
from sojourn.model.gate_rules import not_finite
from sojourn.model.vectors import cap_weights
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import Tour
from sojourn.protocol.spec import Kit
from sojourn.protocol.wire import Ref, Task
from sojourn.store.blobs import BlobStore


class WaveMerge(msgspec.Struct, frozen=True):
    """Merge the exact models of a wave, in hop order."""

    kit: Ref
    models: tuple[Ref, ...]
    weights: tuple[float, ...]
    task: Task


class Merged(msgspec.Struct, frozen=True):
    """The mean: exact, and as it is sent to the devices of the next wave."""

    vectors: dict[str, Ref]
    wire_vectors: dict[str, Ref]


def objection(tour: Tour) -> str | None:
    """Return why a tour cannot be led in waves."""
    if not tour.merges:
        return None
    if tour.task.kind != "train":
        return "only trained models can be merged"
    if returns := (*tour.task.objective.returns, *tour.task.objective.reports):
        return f"an edge server cannot merge {' and '.join(returns)}"
    return None


def merge_of(tour: TourState) -> WaveMerge | None:
    """Return the merge to perform when a wave is over; None if no device returned a result.

    With weights by samples, a device without samples does not count, and none exceeds the maximum share.
    """
    kept = [result for _, result in sorted(tour.results.items()) if result]
    if tour.order.weighting == "samples":
        kept = [result for result in kept if result.samples > 0]
        weights = tuple(cap_weights([float(result.samples) for result in kept], tour.order.bounds.most_share))
    else:
        weights = (1.0,) * len(kept)
    return WaveMerge(tour.order.kit, tuple(it.model for it in kept), weights, tour.order.task) if kept else None


def merge(work: WaveMerge, blobs: BlobStore) -> Merged:
    """Return the weighted mean, summed in hop order."""
    kit = unpack_blob(blobs.read(work.kit.digest), Kit)
    mean = vectors.weighted_mean((vectors.load(blobs, ref, kit.model) for ref in work.models), work.weights)
    if fault := not_finite(mean, "the mean"):
        raise InvalidBlob(fault)
    exact = vectors.save(blobs, mean, "float32", kit.model)
    encoding = work.task.encoding
    sent = exact if encoding == "float32" else vectors.save(blobs, mean, encoding, kit.model)
    return Merged({"model": exact}, {"model": sent})
