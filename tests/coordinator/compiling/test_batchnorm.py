"""Tests of compiled BatchNorm against torch's layer: loss, gradient and running statistics."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from coordinator.compiling import compile_kit
from coordinator.compiling.normalisation import with_plain_batchnorm
from coordinator.compiling.prediction_model import bake
from sojourn.errors import GraphRefused, ModelError
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from coordinator.compiling import Compiled

CLASSES = ("a", "b", "c")
FLAT = InputSpec((6,))


class Images(nn.Module):
    """Maps, 1x1 maps and rows; one layer is used twice, one is never used, and ReLU works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, bias=False)
        self.twice = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.mix = nn.Conv2d(4, 4, 1)
        self.small = nn.BatchNorm2d(4, momentum=0.3, eps=1e-3)
        self.rows = nn.BatchNorm1d(5, affine=False)
        self.never = nn.BatchNorm1d(3)
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, len(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.twice(self.conv(x)))
        x = self.act(self.twice(self.mix(x)))
        x = self.small(x.mean((2, 3), keepdim=True)).flatten(1)
        return self.last(self.rows(self.first(x)))  # type: ignore[no-any-return]


def volumes() -> nn.Module:
    """Volumes and sequences."""
    layers = [nn.BatchNorm3d(2), nn.Flatten(2), nn.BatchNorm1d(2), nn.Tanh(), nn.Flatten(), nn.Linear(24, len(CLASSES))]
    return nn.Sequential(*layers)


def compiled(module: nn.Module, spec: InputSpec, **how: Any) -> Compiled:
    return compile_kit(module, spec, CLASSES, mean=None, std=None, seed=3, **how)


def moved(module: nn.Module) -> nn.Module:
    """Return the module with statistics of a model that was trained before."""
    torch.manual_seed(5)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    return module


def numbers(module: nn.Module) -> np.ndarray:
    """Return the vector of a module: the trained tensors, then its statistics."""
    parts = [p for p in module.parameters() if p.requires_grad]
    state = [b for name, b in module.named_buffers() if not name.endswith("num_batches_tracked")]
    return np.concatenate([part.detach().numpy().reshape(-1) for part in (*parts, *state)])


def batch(spec: InputSpec, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((size, *spec.shape), dtype=np.float32) * 2 + 1, draw.integers(0, len(CLASSES), size)


def by_torch(module: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Compute the loss and the gradient with torch; the module's statistics change."""
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    trained = [p for p in module.parameters() if p.requires_grad]
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return loss.item(), np.concatenate([grad.numpy().reshape(-1) for grad in grads])


@pytest.mark.parametrize(
    ("make", "spec"), [(Images, InputSpec((2, 7, 7))), (volumes, InputSpec((2, 3, 2, 2)))], ids=["images", "volumes"]
)
def test_loss_gradient_and_statistics_match_torch(make, spec) -> None:
    torch.manual_seed(2)
    module = moved(make())
    made = compiled(module, spec)
    graphs, size, vector = Graphs(made.kit), made.kit.model.trainable_size, made.initial.copy()
    assert np.array_equal(vector, numbers(module))
    assert made.kit.model.size - size == sum(b.numel() for b in module.buffers() if b.dim())
    module.train()
    for size in (4, 2, 7):
        x, y = batch(spec, size, size)
        loss, gradient = by_torch(module, x, y)
        ours, mine, state = graphs.loss_gradient_and_state(vector, x, y)
        assert ours == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(mine, gradient, rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(state, numbers(module)[size:], rtol=2e-6, atol=1e-6)
        vector[size:] = state
    module.eval()
    x, _ = batch(spec, 3)
    theirs = module(torch.from_numpy(x)).detach().numpy()
    vector[:size] = numbers(module)[:size]
    np.testing.assert_allclose(graphs.logits(vector, x), theirs, rtol=1e-5, atol=1e-5)
    session = onnxruntime.InferenceSession(bake(made.kit, vector))
    np.testing.assert_allclose(session.run(None, {"x": x})[0], theirs, rtol=1e-5, atol=1e-5)


def rows() -> nn.Module:
    torch.manual_seed(2)
    return moved(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, len(CLASSES))))


@cache
def rows_compiled() -> Compiled:
    return compiled(rows(), FLAT)


def test_single_value_per_channel_uses_running_statistics() -> None:
    module, made = rows(), rows_compiled()
    (x, y), size = batch(FLAT, 1), made.kit.model.trainable_size
    with pytest.raises(ValueError, match="more than 1 value"):
        by_torch(module.train(), x, y)
    loss, gradient = by_torch(module.eval(), x, y)
    ours, mine, state = Graphs(made.kit).loss_gradient_and_state(made.initial, x, y)
    assert ours == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(mine, gradient, rtol=1e-5, atol=1e-7)
    assert np.array_equal(state, made.initial[size:])
    plain = with_plain_batchnorm(rows(), "merge").train()
    assert by_torch(plain, x, y)[0] == pytest.approx(loss, rel=1e-6)
    # Two samples have a deviation, and change the statistics.
    assert not np.array_equal(Graphs(made.kit).loss_gradient_and_state(made.initial, *batch(FLAT, 2))[2], state)


def test_frozen_statistics_are_constant_and_affine_part_trains() -> None:
    module, made = rows().eval(), compiled(rows(), FLAT, batchnorm="frozen")
    assert made.kit.model.state == 0
    assert made.kit.model.size == sum(p.numel() for p in module.parameters())
    x, y = batch(FLAT, 5)
    loss, gradient = by_torch(module, x, y)
    ours, mine, state = Graphs(made.kit).loss_gradient_and_state(made.initial, x, y)
    assert ours == pytest.approx(loss, rel=1e-6)
    assert state.size == 0
    np.testing.assert_allclose(mine, gradient, rtol=1e-5, atol=1e-6)


def test_layer_with_frozen_parameters_keeps_statistics() -> None:
    module = rows()
    module[:2].requires_grad_(requires_grad=False)  # type: ignore[index]
    made = compiled(module, FLAT, whole=True)
    assert [tensor.name for tensor in made.kit.model.tensors] == ["3.weight", "3.bias"]
    x, y = batch(FLAT, 5)
    loss, _ = by_torch(module.eval(), x, y)
    assert Graphs(made.kit).loss_and_gradient(made.initial, x, y)[0] == pytest.approx(loss, rel=1e-6)


def test_probe_covers_state_and_rejects_stale_runtime() -> None:
    kit = rows_compiled().kit
    assert kit.probe.state

    class Stale(Graphs):
        def loss_gradient_and_state(self, vector, x, y, noise=(), reference_models=(), streams=None):
            loss, gradient, _ = super().loss_gradient_and_state(vector, x, y, noise, reference_models, streams)
            return loss, gradient, vector[self._kit.model.trainable_size :]

    assert check_probe(kit, Graphs(kit)) is None
    assert "state after the probe" in (check_probe(kit, Stale(kit)) or "")


def test_kit_with_undeclared_state_is_rejected() -> None:
    """Read the kit as an agent without support for state, which ignores unknown fields."""
    kit = rows_compiled().kit
    unknowing = msgspec.structs.replace(kit, model=msgspec.structs.replace(kit.model, state=0))
    probe = msgspec.structs.replace(kit.probe, state=(), spread=())
    with pytest.raises(GraphRefused, match="state"):
        check_probe(unknowing, Graphs(msgspec.structs.replace(unknowing, probe=probe)))


class Own(nn.BatchNorm1d):
    """A custom layer."""


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(6, momentum=None), ["'0' (BatchNorm1d)", "momentum=None", "such as 0.1"]),
        (nn.BatchNorm1d(6, track_running_stats=False), ["track_running_stats=True", "GroupNorm"]),
        (nn.SyncBatchNorm(6), ["'0' (SyncBatchNorm)", "BatchNorm2d"]),
        (Own(6), ["'0' (Own)", "BatchNorm1d"]),
        (nn.LazyBatchNorm1d(), ["lazy"]),
        (nn.BatchNorm2d(6), ["'0' (BatchNorm2d)", "4 axes"]),
    ],
)
def test_rejected_layer_names_alternative(layer: nn.Module, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        compiled(nn.Sequential(layer, nn.Linear(6, 3)), FLAT)
    assert [word for word in words if word not in str(caught.value)] == []
