"""Tests that recurrent layers as single operators equal torch's, and that their graphs do not grow."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.compiling.prediction_model import bake
from coordinator.compiling.randomness import NoiseFeed
from coordinator.compiling.recurrent_layers import with_recurrence
from sojourn.model.graphs import Graphs
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import noise

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = ("a", "b", "c")
LAYERS = {
    "RNN, two layers": lambda: nn.RNN(3, 4, 2),
    "GRU, two layers, both directions": lambda: nn.GRU(3, 4, 2, bidirectional=True, batch_first=True),
    "LSTM, both directions": lambda: nn.LSTM(3, 4, bidirectional=True),
    "LSTM without biases": lambda: nn.LSTM(3, 4, 2, bias=False, batch_first=True),
}


def states(layer: nn.RNNBase, batch: int) -> Tensor | tuple[Tensor, Tensor]:
    shape = layer.num_layers * (2 if layer.bidirectional else 1), batch, layer.hidden_size
    first, second = torch.randn(shape), torch.randn(shape)
    return (first, second) if layer.mode == "LSTM" else first


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("given", [False, True], ids=["from zeros", "from states"])
def test_substitute_layer_matches_original(make: Callable[[], nn.RNNBase], given: bool) -> None:
    torch.manual_seed(0)
    layer, x = make(), torch.randn(5, 5, 3)
    stand_in = copy.deepcopy(layer)
    with_recurrence(stand_in, NoiseFeed())
    start = (states(layer, 5),) if given else ()
    (y, ends), (wanted, wanted_ends) = stand_in(x, *start), layer(x, *start)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(ends, wanted_ends)


class Recurrent(nn.Module):
    """A recurrent layer with a trained initial state, its last output, and a linear layer."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.start = nn.Parameter(torch.full((layer.num_layers, 1, layer.hidden_size), 0.1))
        self.head = nn.Linear(layer.hidden_size, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        start = self.start.expand(-1, x.shape[0], -1).contiguous()
        y, _ = self.layer(x, (start, start) if self.layer.mode == "LSTM" else start)
        logits: Tensor = self.head(y[:, -1])
        return logits


def compiled(layer: nn.RNNBase, steps: int) -> Compiled:
    torch.manual_seed(0)
    return compile_kit(Recurrent(layer), InputSpec((steps, 3)), CLASSES, mean=None, std=None, seed=1)


def operators(graph: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(graph).graph.node]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_longer_sequence_has_same_graph(kind: type[nn.GRU | nn.LSTM]) -> None:
    short, long = (compiled(kind(3, 4, batch_first=True), steps).kit for steps in (2, 40))
    assert operators(short.train) == operators(long.train)
    assert operators(long.predict).count(kind.__name__) == 1


def test_release_contains_layer_with_constant_weights() -> None:
    result = compiled(nn.LSTM(3, 4, batch_first=True), 5)
    baked = onnx.load_from_string(bake(result.kit, result.initial)).graph
    layer = next(node for node in baked.node if node.op_type == "LSTM")
    assert {*layer.input[1:4]} <= {tensor.name for tensor in baked.initializer}


def test_one_step_sequence_compiles() -> None:
    assert compiled(nn.LSTM(3, 4, 2, batch_first=True), 1).kit.noise == ()


def test_dropout_between_layers_takes_external_noise() -> None:
    result = compiled(nn.GRU(3, 4, 2, dropout=0.5, batch_first=True), 6)
    assert result.kit.noise == ((6, 4),)
    graphs, x, y = Graphs(result.kit), np.ones((2, 6, 3), np.float32), np.array([0, 2])
    drawn = [noise(seed, 0, 2, result.kit.noise) for seed in (1, 1, 2)]
    first, again, other = (graphs.loss_and_gradient(result.initial, x, y, each)[0] for each in drawn)
    assert first == again
    assert first != other
