"""Several descents as one: at each step every visit takes a batch of its own, and torch steps all models together.

The objectives and optimisers are the device's, on vectors of shape (B, P). Batches are filled up to one width with
samples with weight 0. A visit that has done its steps goes on with batches of weight 0 until the longest
is over, but what it ends with was taken when it was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from edge_agent.training import optimisers
from edge_agent.training.descent import EpochResult, steps_of
from sojourn.randomness import batches, noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from edge_agent.training.descent import Batches
    from edge_agent.training.objectives import Objective
    from fleet_sim.engines.torch_graphs import TorchGraphs
    from sojourn.parts import Training
    from sojourn.protocol.spec import Kit


@dataclass(frozen=True)
class VisitBatches:
    """One of the visits: its samples, and the order and noise in which it sees them."""

    samples: Batches
    seed: int
    order: list[NDArray[np.int64]]

    @classmethod
    def of(cls, samples: Batches, training: Training, seed: int) -> VisitBatches:
        """A visit with its batches drawn."""
        return cls(samples, seed, list(batches(seed, len(samples), training.batch, training.epochs)))


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
    kit: Kit,
    visits: Sequence[VisitBatches],
    training: Training,
) -> tuple[NDArray[np.float32], list[list[EpochResult]]]:
    """The vector with which each visit ends, and its epochs."""
    w, ends = starts.clone(), torch.empty_like(starts)
    optimiser = optimisers.begin(training)
    losses = []
    for step in range(max(len(visit.order) for visit in visits)):
        now = _step(visits, step, kit, graphs)

        def slope(at: Tensor, now: _Step = now) -> tuple[Tensor, Tensor]:
            return graphs.losses_and_gradients(at, now.x, now.y, now.weights, now.noise)

        loss, direction = objective.direction(w, slope)
        optimiser.move(w, direction)
        losses.append(loss)
        done = [at for at, visit in enumerate(visits) if len(visit.order) == step + 1]
        ends[done] = w[done]
    by_step = torch.stack(losses, 1).cpu().numpy().astype(np.float64)
    return ends.cpu().numpy(), [_epochs(*each, training) for each in zip(visits, by_step, strict=True)]


def _step(visits: Sequence[VisitBatches], step: int, kit: Kit, graphs: TorchGraphs) -> _Step:
    """Every visit's batch, and for a visit that is over its last one, with weight 0."""
    indices = [visit.order[min(step, len(visit.order) - 1)] for visit in visits]
    width = max(map(len, indices))
    weights = np.zeros((len(visits), width), np.float32)
    rows, drawn = [], []
    for at, (visit, index) in enumerate(zip(visits, indices, strict=True)):
        if step < len(visit.order):
            weights[at, : len(index)] = 1.0 / len(index)
        # Pad with the visit's own samples, not zeros: zeros might give NaN where real samples do not, and NaN·0 is NaN.
        rows.append(visit.samples.batch(np.resize(index, width), kit.input.dtype))
        # Drawn for as many as there are, so that they get the numbers that the device draws.
        drawn.append([_filled(each, width) for each in noise(visit.seed, step, len(index), kit.noise)])
    stacked = [np.stack(each) for each in zip(*drawn, strict=True)]
    return _Step(
        graphs.tensor(np.stack([x for x, _ in rows])),
        graphs.tensor(np.stack([y for _, y in rows])),
        graphs.tensor(weights),
        [graphs.tensor(each) for each in stacked],
    )


def _filled(drawn: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    return np.concatenate([drawn, np.zeros((width - len(drawn), *drawn.shape[1:]), np.float32)])


def _epochs(visit: VisitBatches, losses: NDArray[np.float64], training: Training) -> list[EpochResult]:
    """The mean loss of each epoch, as `edge_agent.training.descent` reports it."""
    per_epoch = steps_of(visit.samples, training)
    found = []
    for first in range(0, len(visit.order), per_epoch):
        steps = range(first, first + per_epoch)
        total = sum(len(visit.order[step]) * float(losses[step]) for step in steps)
        found.append(EpochResult(total / len(visit.samples), per_epoch))
    return found
