"""Tests of whole kits: normalisation, the checks, baking, and repeatability."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit, exporting, translations
from coordinator.compiling.prediction_model import bake
from coordinator.compiling.translations import TRANSLATIONS, registry
from coordinator.models import build
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.spec import InputSpec, Kit

CLASSES = ("a", "b", "c", "d")
SPEC = InputSpec((2, 8, 8))


def compiled(mean: list[float] | None = None, std: list[float] | None = None) -> Compiled:
    return compile_kit(build("cnn", SPEC, 4, {"channels": [4, 4]}, 1), SPEC, CLASSES, mean=mean, std=std, seed=2)


@pytest.fixture(scope="module")
def plain() -> Compiled:
    return compiled()


@pytest.fixture(scope="module")
def scaled() -> Compiled:
    return compiled(mean=[10.0, 20.0], std=[2.0, 4.0])


def batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(size)
    return draw.standard_normal((size, *SPEC.shape), dtype=np.float32), draw.integers(0, 4, size)


def test_graph_contains_normalisation(plain: Compiled, scaled: Compiled) -> None:
    x, y = batch(3)
    raw = x * np.array([2, 4], np.float32).reshape(2, 1, 1) + np.array([10, 20], np.float32).reshape(2, 1, 1)
    loss, gradient = Graphs(plain.kit).loss_and_gradient(plain.initial, x, y)
    same, other = Graphs(scaled.kit).loss_and_gradient(scaled.initial, raw, y)
    unscaled, _ = Graphs(scaled.kit).loss_and_gradient(scaled.initial, x, y)
    assert same == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(other, gradient, atol=1e-5)
    assert abs(unscaled - loss) > 1e-3


def test_graphs_are_portable(plain: Compiled) -> None:
    for graph in (plain.kit.train, plain.kit.predict):
        model = onnx.load_from_string(graph)
        onnx.checker.check_model(model, full_check=True)
        assert model.ir_version <= 10
        assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]


def deep_module() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 6), nn.Dropout(0.5), nn.Sequential(nn.Linear(6, 4, bias=False)))


def test_kit_lists_weights_of_linear_layers(plain: Compiled, scaled: Compiled) -> None:
    shapes = {tensor.name: tensor.shape for tensor in plain.kit.model.tensors}
    assert plain.kit.linear == scaled.kit.linear
    assert [len(shapes[name]) for name in plain.kit.linear] == [2] * len(plain.kit.linear)
    deep = deep_module()
    deep[1].requires_grad_(requires_grad=False)
    assert compile_kit(deep, SPEC, CLASSES, mean=None, std=None, seed=2).kit.linear == ("3.0.weight",)
    alone = compile_kit(nn.Linear(3, 4), InputSpec((3,)), CLASSES, mean=None, std=None, seed=2).kit
    assert alone.linear == ("weight",)


def test_compiling_twice_gives_identical_bytes(plain: Compiled) -> None:
    again = compiled()
    assert msgspec.msgpack.encode(again.kit) == msgspec.msgpack.encode(plain.kit)
    np.testing.assert_array_equal(again.initial, plain.initial)


def test_wrong_gradient_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = torch.ops.aten.threshold_backward.default
    right = TRANSLATIONS[operator]
    wrong: dict[Any, Any] = {**TRANSLATIONS, operator: lambda g, x, t: right(g, g, t)}
    monkeypatch.setattr(translations, "TRANSLATIONS", wrong)
    monkeypatch.setattr(exporting, "registry", registry.__wrapped__)  # list the operators again
    with pytest.raises(ModelError, match="differs by"):
        compiled()


def test_tampered_probe_is_detected(plain: Compiled) -> None:
    assert check_probe(plain.kit, Graphs(plain.kit)) is None
    for change in (
        {"loss": plain.kit.probe.loss + 0.01},
        {"norm": plain.kit.probe.norm * 1.01},
        {"values": tuple(-value for value in plain.kit.probe.values)},
        {"loss": float("nan")},
    ):
        kit = msgspec.structs.replace(plain.kit, probe=msgspec.structs.replace(plain.kit.probe, **change))
        assert "probe" in (check_probe(kit, Graphs(kit)) or "")


def test_kit_round_trips_as_one_blob(plain: Compiled) -> None:
    blob = msgspec.msgpack.encode(plain.kit)
    assert msgspec.msgpack.decode(blob, type=Kit) == plain.kit
    assert len(blob) < 64 * 1024


def test_baked_model_predicts_without_kit(scaled: Compiled) -> None:
    baked = onnx.load_from_string(bake(scaled.kit, scaled.initial))
    onnx.checker.check_model(baked, full_check=True)
    assert [value.name for value in baked.graph.input] == ["x"]
    assert "Split" not in {node.op_type for node in baked.graph.node}
    weights = {tuple(entry.dims) for entry in baked.graph.initializer}
    assert {(4, 2, 3, 3), (4, 4, 3, 3)} <= weights
    session = onnxruntime.InferenceSession(baked.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (1, 7):
        x, _ = batch(size)
        np.testing.assert_allclose(
            session.run(None, {"x": x})[0], Graphs(scaled.kit).logits(scaled.initial, x), rtol=1e-5, atol=1e-6
        )


def test_baking_rejects_vector_of_wrong_length(plain: Compiled) -> None:
    with pytest.raises(ModelError, match="numbers"):
        bake(plain.kit, plain.initial[:-1])


def test_compiling_does_not_change_module_or_torch_rng() -> None:
    module = deep_module().eval()
    before = torch.random.get_rng_state()
    kit = compile_kit(module, SPEC, CLASSES, mean=None, std=None, seed=2).kit
    assert kit.linear == ("1.weight", "3.0.weight")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not module.training
    assert type(module[2]) is nn.Dropout
