"""Tests of each layer against torch: compile_kit raises an error if they disagree."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from coordinator.compiling import Compiled, compile_kit
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import noise
from tests.coordinator.compiling.layer_cases import CASES, CLASSES, IMAGE, LayerCase


def head(*layers: nn.Module, shape: tuple[int, ...] = IMAGE.shape, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Return the layers between others, so that their input's gradient is also needed, and a linear layer for the
    logits.
    """
    torch.manual_seed(0)
    body = nn.Sequential(*layers)
    with torch.no_grad():
        flat = body(torch.zeros(1, *shape, dtype=dtype)).flatten(1).shape[1]
    return nn.Sequential(body, nn.Flatten(), nn.Linear(flat, len(CLASSES)))


def compiled(module: nn.Module, spec: InputSpec = IMAGE) -> Compiled:
    return compile_kit(module, spec, CLASSES, mean=None, std=None, seed=3)


def conv(**options: object) -> nn.Conv2d:
    return nn.Conv2d(4, 8, 3, **options)  # type: ignore[arg-type]


def mix() -> nn.Conv2d:
    return nn.Conv2d(8, 8, 1)


torch.manual_seed(0)  # otherwise the weights below depend on earlier draws
# One model has several layers, because compiling takes seconds; an error names the tensor.
LAYERS = {
    "convolutions": [
        conv(padding=1),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, dilation=2, padding=2, bias=False),
        nn.Conv2d(8, 8, (3, 2), stride=(2, 3), padding=(0, 1)),
    ],
    "grouped and transposed": [
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1, stride=2),
        nn.Conv2d(8, 8, 1, stride=2),
        nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1),
    ],
    "max pool in tiles": [nn.Conv2d(4, 8, (2, 1)), nn.MaxPool2d(2), mix(), nn.MaxPool2d((2, 1))],
    "max pool": [
        conv(padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        mix(),
        nn.MaxPool2d(2),
        mix(),
        nn.MaxPool2d(2, stride=1, ceil_mode=True),
    ],
    "mean pool": [
        conv(),
        nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True),
        mix(),
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        mix(),
        nn.AdaptiveAvgPool2d((3, 2)),
        mix(),
        nn.AdaptiveAvgPool2d(1),
    ],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_layer_agrees_with_torch(layers: list[nn.Module]) -> None:
    result = compiled(head(*layers))
    assert check_probe(result.kit, Graphs(result.kit)) is None


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.layers)
def test_layer_table_cases_agree_with_torch(case: LayerCase) -> None:
    model = case.model()
    inside = {type(layer).__name__ for layer in model.modules()}
    named = [name for name in case.layers.split(", ") if name.isidentifier()]
    assert [name for name in named if name not in inside] == []
    result = compiled(model, case.spec)
    assert check_probe(result.kit, Graphs(result.kit)) is None


def operators(graph: bytes) -> set[str]:
    return {node.op_type for node in onnx.load_from_string(graph).graph.node}


# Each implementation of a convolution's gradient, by the operators that only it uses.
WAYS: dict[str, tuple[list[nn.Module], set[str]]] = {
    "large maps that keep their size": ([conv(padding=1), nn.Conv2d(8, 8, 3, padding=2, dilation=2)], set()),
    "large maps that shrink": (
        [conv(), nn.Conv2d(8, 16, (3, 1)), nn.Conv2d(16, 8, 3, stride=(2, 1))],
        {"ConvTranspose"},
    ),
    "small maps": ([conv(stride=3), nn.Conv2d(8, 16, 3, stride=(2, 1), padding=1)], {"Col2Im"}),
    "small maps of one and of three axes": (
        [
            nn.Flatten(2),
            nn.Conv1d(4, 8, 9, stride=9),
            nn.Conv1d(8, 6, 3, dilation=5),
            nn.Unflatten(2, (2, 4, 4)),
            nn.Conv3d(6, 8, 2, dilation=(1, 2, 1)),
        ],
        {"ConvTranspose"},
    ),
}


@pytest.mark.parametrize(("layers", "used"), WAYS.values(), ids=WAYS)
def test_convolution_gradient_agrees_with_torch_on_each_path(layers: list[nn.Module], used: set[str]) -> None:
    spec = InputSpec((4, 20, 19))
    result = compiled(head(*layers, shape=spec.shape), spec)
    assert operators(result.kit.train) & {"ConvTranspose", "Col2Im"} == used


class Residual(nn.Module):
    """Layer norm, a residual add and a tied weight over an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=2)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.inner.weight
        self.head = nn.Linear(6, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        h = h + self.again(torch.relu(self.inner(self.norm(h))))
        logits: Tensor = self.head(h.mean(1))
        return logits


def test_embedding_layer_norm_residual_and_ties_match_torch() -> None:
    torch.manual_seed(0)
    result = compiled(Residual(), InputSpec((5,), "int64"))
    names = [tensor.name for tensor in result.kit.model.tensors]
    assert "inner.weight" in names
    assert "again.weight" not in names
    assert result.initial.size == sum(p.numel() for p in Residual().parameters())


def test_frozen_tensors_stay_out_of_the_vector() -> None:
    first = conv()
    module = head(first)
    first.weight.requires_grad_(False)
    result = compiled(module)
    assert [tensor.name for tensor in result.kit.model.tensors] == ["0.0.bias", "2.weight", "2.bias"]


def test_dropout_noise_changes_loss_and_is_absent_otherwise() -> None:
    result = compiled(head(conv(), nn.Dropout(0.5)))
    graphs = Graphs(result.kit)
    assert result.kit.noise == ((8, 7, 6),)
    x = np.random.default_rng(0).standard_normal((2, *IMAGE.shape), dtype=np.float32)
    y = np.array([0, 2])
    some = noise(1, 0, 2, result.kit.noise)
    first, _ = graphs.loss_and_gradient(result.initial, x, y, some)
    again, _ = graphs.loss_and_gradient(result.initial, x, y, some)
    other, _ = graphs.loss_and_gradient(result.initial, x, y, noise(2, 0, 2, result.kit.noise))
    kept, gradient = graphs.loss_and_gradient(result.initial, x, y, [np.ones_like(some[0])])
    assert first == again
    assert first != other
    assert kept != first
    dropped, nothing = graphs.loss_and_gradient(result.initial, x, y, [np.zeros_like(some[0])])
    assert dropped == pytest.approx(_bias_loss(result), rel=1e-5)
    assert not nothing[: 8 * 4 * 9].any()
    assert gradient[: 8 * 4 * 9].any()


def _bias_loss(result: Compiled) -> float:
    bias = torch.from_numpy(result.kit.model.split(result.initial)["2.bias"].copy())
    return float(-torch.log_softmax(bias, 0)[torch.tensor([0, 2])].mean())


def test_max_pool_gives_ties_to_first_position() -> None:
    result = compiled(head(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), shape=(1, 2, 2)), InputSpec((1, 2, 2)))
    x = np.ones((1, 1, 2, 2), np.float32)
    _, gradient = Graphs(result.kit).loss_and_gradient(result.initial, x, np.array([1]))
    # If all four places received the gradient, that of the weight would be four times that of the bias.
    assert gradient[0] == gradient[1]
    assert gradient[0] != 0
