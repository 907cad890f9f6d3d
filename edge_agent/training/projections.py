"""MA-Echo on the device: what its data leaves free in each layer of weights, from one more pass without training.

Shangchao Su, Bin Li and Xiangyang Xue: "One-Shot Federated Learning without Server-Side Training", Neural Networks
2023. Only means of a batch go in: r is the mean input of a layer over the batch, with a 1 for its bias; of a
convolution every patch of the mean map is one, in steps of two pixels and without a border.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edge_agent.training.reasons import Unsupported
from sojourn.model.lengths import TOLD_BYTES, told_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from edge_agent.training.descent import Prepared
    from sojourn.parts import Echo
    from sojourn.protocol.spec import Kit, TapLayer

    Matrix = NDArray[np.float64]

DAMPED, EXACT = 0.5, 1.0
STRIDE = 2
FLOAT64, FLOAT32, MEGABYTE = 8, 4, 1 << 20
ENOUGH = 1
"""A class counts as had with more samples than this."""


def projections(settings: Echo, prepared: Prepared, model: NDArray[np.float32], batch: int) -> NDArray[np.float32]:
    """What a device tells: of each layer but the last its projection, then 1 for each class that it has."""
    layers = layers_of(prepared.kit, settings)
    found = [np.eye(layer.inputs) for layer in layers]
    for at in range(0, len(prepared.samples), batch):
        rows = np.arange(at, min(at + batch, len(prepared.samples)))
        x, _ = prepared.samples.batch(rows, prepared.kit.taken.dtype)
        for projection, layer, given in zip(found, layers, prepared.graphs.taps(model, x), strict=False):
            for r in mean_inputs(given, layer):
                narrow(projection, r, settings.a_conv if layer.kernel else settings.a_dense, settings.form == "exact")
    told = [told_of(projection, settings.rank).ravel() for projection in found]
    return np.concatenate([*told, classes_had(prepared)]).astype(np.float32)


def layers_of(kit: Kit, settings: Echo) -> tuple[TapLayer, ...]:
    """The layers that move; Unsupported where their projections take more room than they may."""
    if not kit.more or not kit.more.taps:
        raise Unsupported("the kit has no graph of what its layers are given")
    layers = kit.more.taps.layers[:-1]
    room = FLOAT64 * sum(layer.inputs**2 for layer in layers)
    if room > settings.memory * MEGABYTE or FLOAT32 * sum(told_numbers(settings, kit)) > TOLD_BYTES:
        raise Unsupported(
            f"the projections of this model take {room / MEGABYTE:,.0f} MB, and objective.memory = {settings.memory:g}"
        )
    return layers


def mean_inputs(given: NDArray[np.float32], layer: TapLayer) -> Iterator[Matrix]:
    """The mean input of a batch, or every patch of the mean map; with a 1 where the layer has a bias."""
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


def told_of(projection: Matrix, rank: int) -> Matrix:
    """The projection itself, or Q with P ~ I - Q Q^T for the leading directions that the data uses."""
    if not rank:
        return projection
    values, vectors = np.linalg.eigh(np.eye(len(projection)) - projection)
    leading = slice(max(0, len(values) - rank), None)
    found: Matrix = vectors[:, leading] * np.sqrt(values[leading].clip(0.0, 1.0))
    return found


def classes_had(prepared: Prepared) -> Matrix:
    """1 for each class of which the device has more than one sample."""
    rows = np.arange(len(prepared.samples))
    _, y = prepared.samples.batch(rows, prepared.kit.taken.dtype)
    counts = np.bincount(np.asarray(y, np.int64), minlength=len(prepared.kit.classes))
    return (counts > ENOUGH).astype(np.float64)
