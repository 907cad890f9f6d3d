"""Tests of cutting models: the part before the cut is frozen, independent of the batch, and worth the cut."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from coordinator.compiling import compile_kit
from coordinator.compiling.exporting import exported, trace_predict, trace_train
from coordinator.compiling.frozen_parts import CutModel, cut, mixes_samples
from coordinator.compiling.losses import classifying
from coordinator.compiling.normalisation import normalised, with_plain_batchnorm
from coordinator.compiling.prediction_model import bake
from coordinator.compiling.randomness import learn_draws, with_fed_dropout
from coordinator.compiling.tracing import TRACED_BATCH, Trainee
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.spec import InputSpec, Kit, Trunk

CLASSES = ("a", "b", "c")
IMAGE = InputSpec((1, 8, 8))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


def trunk() -> nn.Module:
    """Two convolutions with a norm that has statistics, down to 16 numbers."""
    norm = nn.BatchNorm2d(4)
    norm.running_mean = torch.tensor([0.3, -0.2, 0.1, 0.0])
    norm.running_var = torch.tensor([1.5, 0.7, 2.0, 1.0])
    return frozen(
        nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), norm, nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(2)
        )
    )


def head(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, len(CLASSES)))


def model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(trunk(), head())


def cut_of(module: nn.Module, spec: InputSpec = IMAGE) -> CutModel | None:
    """Cut a model without the other steps of compiling."""
    fed, feed = with_fed_dropout(module)
    fed = with_plain_batchnorm(fed, "merge")
    whole = normalised(fed, spec, None, None)
    trainee = Trainee(whole, feed, classifying(len(CLASSES)))
    shape = (TRACED_BATCH, *spec.shape)
    x = torch.ones(shape, dtype=torch.int64) if spec.dtype == "int64" else torch.rand(shape)
    learn_draws(fed.train(), feed, x)
    noise = [torch.rand(TRACED_BATCH, *draw.shape) for draw in feed.draws]
    return cut(trace_train(trainee, x, torch.zeros(TRACED_BATCH, dtype=torch.int64), noise), trace_predict(trainee, x))


@cache
def kits() -> tuple[Kit, Kit]:
    """Return the model cut and whole."""
    mean, std = [8.0], [4.0]
    made = [compile_kit(model(), IMAGE, CLASSES, mean=mean, std=std, seed=2, whole=each).kit for each in (False, True)]
    return made[0], made[1]


def test_cut_model_computes_the_same_as_whole_model() -> None:
    in_two, whole = kits()
    assert in_two.trunk
    assert in_two.trunk.shape == (16,)
    assert in_two.taken == InputSpec((16,))
    assert not whole.trunk
    draw = np.random.default_rng(1)
    x, y = draw.normal(8, 4, (5, 1, 8, 8)).astype(np.float32), draw.integers(0, 3, 5)
    w, noise = draw.normal(0, 0.3, whole.model.size).astype(np.float32), [draw.random((5, 8), np.float32)]
    one, other = Graphs(in_two), Graphs(whole)
    features = one.features(x)
    loss, gradient = one.loss_and_gradient(w, features, y, noise)
    expected, slope = other.loss_and_gradient(w, x, y, noise)
    assert loss == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, slope, atol=1e-5 * np.abs(slope).max())
    np.testing.assert_allclose(one.logits(w, features), other.logits(w, x), atol=1e-5)
    assert other.features(x) is x
    assert check_probe(in_two, one) is None


def test_features_do_not_depend_on_the_batch() -> None:
    graphs = Graphs(kits()[0])
    x = np.random.default_rng(2).normal(8, 4, (7, 1, 8, 8)).astype(np.float32)
    together = graphs.features(x)
    assert together.dtype == np.float32
    assert together.tobytes() == b"".join(graphs.features(x[at : at + 1]).tobytes() for at in range(7))
    assert len(graphs.features(x[:0])) == 0


def test_kit_stores_frozen_weights_once() -> None:
    in_two, whole = kits()
    numbers = sum(each.numel() for each in model()[0].parameters())
    assert in_two.trunk
    assert len(in_two.trunk.graph) > 4 * numbers
    assert len(in_two.train) < len(whole.train) - 4 * numbers
    assert len(in_two.predict) < len(whole.predict) - 4 * numbers


def test_a_kit_is_read_as_it_was_written() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kits()[0]), type=Kit) == kits()[0]


def test_release_of_cut_model_is_whole() -> None:
    in_two, whole = kits()
    w = np.random.default_rng(3).normal(0, 0.3, whole.model.size).astype(np.float32)
    x = np.random.default_rng(4).normal(8, 4, (4, 1, 8, 8)).astype(np.float32)
    answers = [
        onnxruntime.InferenceSession(bake(kit, w), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for kit in (in_two, whole)
    ]
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)


def test_cut_is_after_all_work_at_smallest_output() -> None:
    module = nn.Sequential(trunk(), frozen(nn.Upsample(scale_factor=2)), nn.Flatten(), nn.Linear(64, 3))
    found = cut_of(module)
    assert found
    assert found.shape == (4, 2, 2)


def test_cut_is_before_any_noise() -> None:
    module = nn.Sequential(trunk(), frozen(nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 64))), head(64))
    found = cut_of(module)
    assert found
    assert found.shape == (4, 2, 2)
    assert found.train.names == ["vector", "x", "y", "noise_0", "noise_1"]


class Residual(nn.Module):
    """A trained layer that also reads the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.flat, self.last = frozen(nn.Linear(4, 4)), nn.Flatten(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.frozen(x) + self.last.weight.mean() * x)
        return out


class Centred(nn.Module):
    """A frozen layer whose output depends on the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("module", "spec"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), IMAGE),
        (nn.Sequential(nn.Conv2d(1, 2, 3), frozen(nn.Conv2d(2, 2, 3)), nn.Flatten(), nn.Linear(32, 3)), IMAGE),
        (nn.Sequential(frozen(nn.Embedding(9, 4)), nn.Flatten(), nn.Linear(8, 3)), InputSpec((2,), "int64")),
        (nn.Sequential(nn.Flatten(), frozen(nn.Linear(64, 5000)), nn.ReLU(), nn.Linear(5000, 3)), IMAGE),
        (Residual(), InputSpec((4,))),
    ],
    ids=["nothing frozen", "trained before it", "no work", "too large", "samples needed behind it"],
)
def test_unsuitable_model_is_not_cut(module: nn.Module, spec: InputSpec) -> None:
    assert cut_of(module, spec) is None


def test_trunk_that_mixes_samples_is_not_cut_off() -> None:
    module = nn.Sequential(nn.Flatten(), Centred(), frozen(nn.Linear(64, 8)), nn.Linear(8, 3))
    found = cut_of(module)
    assert found
    x = np.random.default_rng(1).normal(size=(5, 1, 8, 8)).astype(np.float32)
    assert mixes_samples(Trunk(exported(found.trunk), found.shape), x)
    kit = compile_kit(module, IMAGE, CLASSES, mean=None, std=None, seed=1).kit
    assert not kit.trunk


class LastStep(nn.Module):
    """The state of a sequence after its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.inner(x)
        return states[:, -1]  # type: ignore[no-any-return]


def test_frozen_recurrent_layer_becomes_a_trunk() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(LastStep().requires_grad_(requires_grad=False), nn.Linear(4, len(CLASSES)))
    spec = InputSpec((5, 3))
    in_two, whole = (
        compile_kit(module, spec, CLASSES, mean=None, std=None, seed=2, whole=each) for each in (False, True)
    )
    assert in_two.kit.trunk
    assert in_two.kit.trunk.shape == (4,)
    assert not whole.kit.trunk
    x = np.random.default_rng(1).standard_normal((6, 5, 3)).astype(np.float32)
    y, cut_graphs = np.arange(6) % len(CLASSES), Graphs(in_two.kit)
    loss, gradient = cut_graphs.loss_and_gradient(in_two.initial, cut_graphs.features(x), y)
    wanted, expected = Graphs(whole.kit).loss_and_gradient(whole.initial, x, y)
    assert loss == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)
