"""Every compiled kit is compared with torch; one that disagrees never starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.model.session import REFUSED
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.compiling.samples import Batch, ProbeSamples
    from coordinator.compiling.tracing import Trainee
    from sojourn.protocol.spec import Kit

BATCHES = (1, 3, 16)
STEPS = 4
RATE = 0.05
# Of the largest value in the tensor. Two float32 engines come to about 1e-6; a wrong gradient is off by its own size.
TOLERANCE = 5e-4
# A tensor's largest value counts at least this share of the whole gradient's: below it there is only rounding.
FLOOR = 1e-3


def check_kit(kit: Kit, trainee: Trainee, samples: ProbeSamples, seed: int) -> None:
    """Raise ModelError, with by how much, where onnxruntime and torch disagree."""
    graphs = Graphs(kit, threads=1)
    # Moved off the start, where zeros (biases, last layers of a block) would hide wrong gradients behind them.
    start = trainee.initial.numpy()
    spread = 0.05 * generator(seed, "spread").standard_normal(start.size, dtype=np.float32)
    try:
        for size in BATCHES:
            batch = samples.batch(size, seed, coarse=size == max(BATCHES))
            _check_batch(graphs, trainee, start + spread, batch)
            _check_logits(graphs, trainee, start + spread, batch)
        _check_steps(graphs, trainee, samples, seed)
    except REFUSED as error:
        raise ModelError(f"onnxruntime refuses the compiled model: {error}") from error


def by_torch(trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> tuple[float, list[NDArray[np.float32]]]:
    """The loss and the gradient of each tensor as torch computes them."""
    tensors = trainee.split(torch.from_numpy(vector))
    noise = [torch.from_numpy(values) for values in batch.noise]
    loss, gradients = trainee.loss_and_gradient(tensors, _tensor(batch.x), torch.from_numpy(batch.y), noise)
    return loss.item(), [gradient.numpy() for gradient in gradients]


def _tensor(x: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


def _check_batch(graphs: Graphs, trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> NDArray[np.float32]:
    """Compare loss and gradient; the gradient comes back for the next step."""
    loss, gradients = by_torch(trainee, vector, batch)
    here, gradient = graphs.loss_and_gradient(vector, batch.x, batch.y, batch.noise)
    what = f"a batch of {len(batch.y)}"
    if not abs(here - loss) <= TOLERANCE * max(1.0, abs(loss)):
        raise ModelError(f"compiled and torch disagree for {what}: the loss is {here:.7g}, by torch {loss:.7g}")
    if gradient.size != vector.size:
        raise ModelError(f"compiled and torch disagree for {what}: {gradient.size} gradients of {vector.size}")
    largest = max(float(np.abs(expected).max(initial=0)) for expected in gradients)
    parts = np.split(gradient, np.cumsum(trainee.sizes)[:-1])
    for name, expected, part in zip(trainee.names, gradients, parts, strict=True):
        _check_close(f"the gradient of {name} for {what}", part, expected.reshape(-1), FLOOR * largest)
    return gradient


def _check_logits(graphs: Graphs, trainee: Trainee, vector: NDArray[np.float32], batch: Batch) -> None:
    with torch.no_grad():
        expected = trainee.logits(trainee.split(torch.from_numpy(vector)), _tensor(batch.x)).numpy()
    _check_close(f"the prediction for a batch of {len(batch.y)}", graphs.logits(vector, batch.x), expected, 0.0)


def _check_steps(graphs: Graphs, trainee: Trainee, samples: ProbeSamples, seed: int) -> None:
    """Walk a few steps of SGD from the start, comparing at each."""
    vector = trainee.initial.numpy().copy()
    for step in range(STEPS):
        batch = samples.batch(4, seed + 1 + step)
        vector -= np.float32(RATE) * _check_batch(graphs, trainee, vector, batch)


def _check_close(what: str, here: NDArray[np.float32], expected: NDArray[np.float32], floor: float) -> None:
    if here.shape != expected.shape:
        raise ModelError(f"compiled and torch disagree: {what} has shape {here.shape}, by torch {expected.shape}")
    apart = float(np.abs(here - expected).max(initial=0))
    scale = max(float(np.abs(expected).max(initial=0)), floor)
    if not apart <= TOLERANCE * scale + 1e-9:
        raise ModelError(
            f"compiled and torch disagree: {what} is off by {apart:.3g}, where its largest value is {scale:.3g} "
            f"(allowed: {TOLERANCE:g} of it)"
        )
