"""The visit of MA-Echo: plain training, then one more pass that computes a projection for each layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.descent import Prepared, Progress, descended, metrics
from edge_agent.training.fedelmy import shuffled
from edge_agent.training.messages import Train, Trained
from edge_agent.training.objectives import Plain
from edge_agent.training.visit_vectors import Unsupported, model_of, save_model, sent_model
from sojourn.model import vectors
from sojourn.model.vectors import MAX_REPORTED_BYTES, flat, reported_sizes
from sojourn.parts import Echo
from sojourn.protocol.spec import Kit, TapLayer
from sojourn.store.blobs import BlobStore

Matrix = NDArray[np.float64]

# MA-Echo on the device: for each layer, the projection onto the directions that its inputs do not use.
#
# Shangchao Su, Bin Li and Xiangyang Xue: "One-Shot Federated Learning without Server-Side Training", Neural Networks
# 2023. Only batch means are used: r is the mean input of a layer over the batch, with a 1 for its bias. For a
# convolution, every patch of the mean map is an r, with a stride of two pixels and without padding.

DAMPED, EXACT = 0.5, 1.0
STRIDE = 2
FLOAT64, FLOAT32, MEGABYTE = 8, 4, 1 << 20
MIN_CLASS_SAMPLES = 2
"""Minimum number of samples for a class to count as present."""


def projections(settings: Echo, prepared: Prepared, model: NDArray[np.float32], batch: int) -> NDArray[np.float32]:
    """Return what a device sends: the projection of each layer except the last, then 1 for each class it has."""
    layers = layers_of(prepared.kit, settings)
    found = [np.eye(layer.inputs) for layer in layers]
    for at in range(0, len(prepared.samples), batch):
        rows = np.arange(at, min(at + batch, len(prepared.samples)))
        x, _ = prepared.samples.batch(rows, prepared.kit.taken.dtype)
        for projection, layer, given in zip(found, layers, prepared.graphs.taps(model, x), strict=False):
            for r in mean_inputs(given, layer):
                narrow(projection, r, settings.a_conv if layer.kernel else settings.a_dense, settings.form == "exact")
    compact = [compressed(projection, settings.rank).ravel() for projection in found]
    return np.concatenate([*compact, classes_present(prepared)]).astype(np.float32)


def layers_of(kit: Kit, settings: Echo) -> tuple[TapLayer, ...]:
    """Return the layers with projections; raise Unsupported if these exceed the memory limit."""
    if not kit.more or not kit.more.taps:
        raise Unsupported("the kit has no graph that outputs the inputs of its layers")
    layers = kit.more.taps.layers[:-1]
    room = FLOAT64 * sum(layer.inputs**2 for layer in layers)
    if room > settings.memory * MEGABYTE or FLOAT32 * sum(reported_sizes(settings, kit)) > MAX_REPORTED_BYTES:
        raise Unsupported(
            f"the projections of this model take {room / MEGABYTE:,.0f} MB, and objective.memory = {settings.memory:g}"
        )
    return layers


def mean_inputs(given: NDArray[np.float32], layer: TapLayer) -> Iterator[Matrix]:
    """Yield the mean input of a batch, or every patch of the mean map, with a 1 appended if the layer has a bias."""
    one = np.ones(1 if layer.bias else 0)
    if not layer.kernel:
        yield np.concatenate([given.reshape(-1, given.shape[-1]).mean(0, dtype=np.float64), one])
        return
    mean = given.mean(0, dtype=np.float64)
    height, width = layer.kernel
    for row in range(0, mean.shape[1] - height + 1, STRIDE):
        for column in range(0, mean.shape[2] - width + 1, STRIDE):
            patch = mean[:, row : row + height, column : column + width]
            yield np.concatenate([patch.ravel(), one])


def narrow(projection: Matrix, r: Matrix, a: float, exact: bool) -> None:
    """P <- P - c (P r)(P r)^T / (a + r^T P r), in place."""
    pr = projection @ r
    projection -= np.outer(pr, pr * ((EXACT if exact else DAMPED) / (a + float(r @ pr))))


def compressed(projection: Matrix, rank: int) -> Matrix:
    """Return P itself, or Q with P ~ I - Q Q^T for the `rank` leading directions that the data uses."""
    if not rank:
        return projection
    values, vectors = np.linalg.eigh(np.eye(len(projection)) - projection)
    leading = slice(max(0, len(values) - rank), None)
    found: Matrix = vectors[:, leading] * np.sqrt(values[leading].clip(0.0, 1.0))
    return found


def classes_present(prepared: Prepared) -> Matrix:
    """Return 1 for each class of which the device has more than one sample, otherwise 0."""
    rows = np.arange(len(prepared.samples))
    _, y = prepared.samples.batch(rows, prepared.kit.taken.dtype)
    counts = np.bincount(np.asarray(y, np.int64), minlength=len(prepared.kit.classes))
    return (counts >= MIN_CLASS_SAMPLES).astype(np.float64)


def train_echo(work: Train, settings: Echo, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train, and send the model with its projections."""
    visit, spec = work.visit, prepared.kit.model
    layers_of(prepared.kit, settings)  # fails before training
    received = model_of(visit, blobs, spec)
    start = shuffled(received, spec, visit.seed) if settings.start == "own" else received
    end, passed = descended(start, Plain(), prepared, visit.task.training, visit.seed, progress)
    model = save_model(blobs, received, end, visit.task, spec)
    seen = sent_model(blobs, received, model, spec)
    reported = projections(settings, prepared, seen, visit.task.training.batch)
    sent = {"model": model, "projections": vectors.save(blobs, reported, "float32", flat(len(reported)))}
    return Trained(sent, len(prepared.samples), metrics(passed), None, {})
