"""Tests of noise inputs for everything that drops at random, for any axis of the samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coordinator.compiling import compile_kit
from coordinator.compiling.layer_errors import LayerRefused
from coordinator.compiling.randomness import Draw, NoiseFeed, draw_between, learn_draws
from fleet_sim.engines.engine import Network
from fleet_sim.engines.torch_graphs import TorchGraphs
from sojourn.model.graphs import Graphs
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import noise

STEPS = InputSpec((5, 4))


@pytest.mark.parametrize(
    ("first", "second", "draw"),
    [
        ((2, 7), (3, 7), Draw((7,))),
        ((2,), (3,), Draw(())),
        ((5, 2, 4), (5, 3, 4), Draw((5, 4), 1)),
        ((8, 5, 5), (12, 5, 5), Draw((4, 5, 5), 0, rows=True)),
        ((1, 1), (1, 1), Draw((1, 1), None)),
    ],
)
def test_sample_axis_is_found_from_two_batches(first: tuple[int, ...], second: tuple[int, ...], draw: Draw) -> None:
    assert draw_between(first, second, (2, 3)) == draw
    assert draw.arranged(torch.zeros(2, *draw.shape)).shape == first
    assert draw.arranged(torch.zeros(3, *draw.shape)).shape == second


def test_noise_per_sample_pair_is_rejected() -> None:
    with pytest.raises(LayerRefused, match="random numbers"):
        draw_between((2, 2), (3, 3), (2, 3))


class Dropping(nn.Module):
    """A model that drops steps, first by a function, then by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout, self.head = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(20, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.dropout(self.linear(x.transpose(0, 1)), 0.4, self.training)
        logits: Tensor = self.head(self.dropout(x).transpose(0, 1).flatten(1))
        return logits


def test_functions_take_external_noise_as_layers_do() -> None:
    torch.manual_seed(0)
    module = Dropping()
    made = compile_kit(module, STEPS, ("a", "b"), mean=None, std=None, seed=1)
    assert made.kit.noise == ((5, 4), (5, 4))
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((3, *STEPS.shape), dtype=np.float32), np.array([0, 1, 1])
    graphs, by_torch = Graphs(made.kit), TorchGraphs(made.kit, Network(module, None, None))
    losses = []
    for seed in (1, 2):
        drawn = noise(seed, 0, 3, made.kit.noise)
        loss, gradient = graphs.loss_and_gradient(made.initial, x, y, drawn)
        there, gradient_there = by_torch.loss_and_gradient(made.initial, x, y, drawn)
        assert loss == pytest.approx(there, rel=1e-5)
        np.testing.assert_allclose(gradient, gradient_there, rtol=1e-4, atol=1e-6)
        vectors = torch.from_numpy(np.stack([made.initial, made.initial]))
        each = [
            torch.from_numpy(np.stack([values, values])) for values in (x, y, np.full(3, 1 / 3, np.float32), *drawn)
        ]
        together, _ = by_torch.losses_and_gradients(vectors, each[0], each[1], each[2], each[3:])
        assert together.tolist() == pytest.approx([loss, loss], rel=1e-5)
        losses.append(loss)
    assert losses[0] != losses[1]


def test_model_without_dropout_needs_no_noise() -> None:
    feed = NoiseFeed()
    learn_draws(nn.Linear(4, 2), feed, torch.zeros(2, 4))
    assert feed.draws == ()
    assert not feed.to_functions
