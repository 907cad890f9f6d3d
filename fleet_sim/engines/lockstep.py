"""Several descents as one: at each step every visit takes a batch of its own, and torch steps all models together.

The objectives and optimisers are the device's, on vectors of shape (B, P). Batches are filled up to one width with
samples with weight 0. A visit that has done its steps goes on with batches of weight 0 until the longest
is over, but what it ends with was taken when it was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from edge_agent.training import optimisers
from sojourn.randomness import noise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from edge_agent.training.objectives import Objective
    from fleet_sim.engines.descents import Descent
    from fleet_sim.engines.torch_graphs import TorchGraphs
    from sojourn.protocol.spec import Kit

WINDOW = 32 << 20
"""Bytes of samples that are brought to where torch computes at once."""


@dataclass(frozen=True)
class _Step:
    """The batches of one step, all of one width."""

    x: Tensor
    y: Tensor
    weights: Tensor
    noise: list[Tensor]


def descend_together(
    starts: Tensor,
    objective: Objective,
    graphs: TorchGraphs,
    visits: Sequence[Descent],
) -> tuple[NDArray[np.float32], list[list[float]]]:
    """The vector with which each visit ends, and the loss of each of its steps."""
    kit, w, ends = visits[0].prepared.kit, starts.clone(), torch.empty_like(starts)
    optimiser = optimisers.begin(visits[0].work.visit.task.training)
    losses = []
    for step, now in enumerate(_steps(visits, kit, graphs)):

        def slope(at: Tensor, now: _Step = now) -> tuple[Tensor, Tensor]:
            return graphs.losses_and_gradients(at, now.x, now.y, now.weights, now.noise)

        loss, direction = objective.direction(w, slope)
        optimiser.move(w, direction)
        losses.append(loss)
        if done := [at for at, visit in enumerate(visits) if len(visit.order) == step + 1]:
            ends[done] = w[done]
    by_visit = torch.stack(losses, 1).cpu().numpy().astype(np.float64).tolist()
    return ends.cpu().numpy(), [of[: len(visit.order)] for visit, of in zip(visits, by_visit, strict=True)]


def _steps(visits: Sequence[Descent], kit: Kit, graphs: TorchGraphs) -> Iterator[_Step]:
    """The batches of every step; those of several steps are brought at once, which costs as much as those of one."""
    count = max(len(visit.order) for visit in visits)
    width = max(len(index) for visit in visits for index in visit.order)
    size = len(visits) * width * prod(kit.input.shape) * np.dtype(kit.input.dtype).itemsize
    window = max(1, WINDOW // size)
    for first in range(0, count, window):
        yield from _window(visits, range(first, min(first + window, count)), kit, graphs)


def _window(visits: Sequence[Descent], steps: range, kit: Kit, graphs: TorchGraphs) -> Iterator[_Step]:
    """The batches of some steps: every visit's, and for a visit that is over its last one, with weight 0."""
    order = [[visit.order[min(step, len(visit.order) - 1)] for step in steps] for visit in visits]
    widths = [max(map(len, indices)) for indices in zip(*order, strict=True)]
    width = max(widths)
    weights = np.zeros((len(steps), len(visits), width), np.float32)
    x = np.empty((len(steps), len(visits), width, *kit.input.shape), kit.input.dtype)
    target = kit.learns.target
    shape, dtype = (target.shape, target.dtype) if target else ((), "int64")
    y = np.empty((len(steps), len(visits), width, *shape), dtype)
    for at, (visit, indices) in enumerate(zip(visits, order, strict=True)):
        for place, (step, index) in enumerate(zip(steps, indices, strict=True)):
            if step < len(visit.order):
                weights[place, at, : len(index)] = 1.0 / len(index)
        # Pad with the visit's own samples, not zeros: zeros might give NaN where real samples do not, and NaN·0 is NaN.
        padded = np.concatenate([index if len(index) == width else np.resize(index, width) for index in indices])
        rows, labels = visit.samples.batch(padded, kit.input.dtype)
        x[:, at], y[:, at] = rows.reshape(x[:, at].shape), labels.reshape(y[:, at].shape)
    brought = [graphs.tensor(each) for each in (x, y, weights)]
    for place, step in enumerate(steps):
        inputs, labels_here, weighed = (each[place, :, : widths[place]] for each in brought)
        drawn = _noise(visits, step, [indices[place] for indices in order], kit, graphs)
        yield _Step(inputs, labels_here, weighed, drawn)


def _noise(
    visits: Sequence[Descent], step: int, indices: Sequence[NDArray[np.int64]], kit: Kit, graphs: TorchGraphs
) -> list[Tensor]:
    """The noise of one step, drawn for as many samples as there are, so that they get the numbers a device draws."""
    if not kit.noise:
        return []
    width = max(map(len, indices))
    drawn = [
        [_filled(each, width) for each in noise(visit.seed, step, len(index), kit.noise)]
        for visit, index in zip(visits, indices, strict=True)
    ]
    return [graphs.tensor(np.stack(each)) for each in zip(*drawn, strict=True)]


def _filled(drawn: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    return np.concatenate([drawn, np.zeros((width - len(drawn), *drawn.shape[1:]), np.float32)])
