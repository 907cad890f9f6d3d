"""Tests that a kit contains frozen weights once, and that its graphs compute the same with them."""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
import onnx
import pytest
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.compiling.frozen_parts import with_shared_weights
from coordinator.compiling.prediction_model import bake
from sojourn.errors import GraphRefused
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.predictions import Predictor
from sojourn.model.session import complete_graph
from sojourn.protocol.envelope import pack_blob, unpack_blob
from sojourn.protocol.spec import InputSpec, Kit


class Net(nn.Module):
    """Frozen, trained and frozen layers, with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.middle = nn.Linear(256, 96)
        self.fixed = nn.Linear(96, 96, bias=False)
        self.head = nn.Linear(96, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.trunk(x).flatten(1)
        out: torch.Tensor = self.head(torch.relu(self.fixed(torch.relu(self.middle(x)))))
        return out


@cache
def made(*, cut: bool = False) -> tuple[nn.Module, Compiled, Kit]:
    torch.manual_seed(3)
    module = Net()
    norm = module.trunk[1]
    assert isinstance(norm, nn.BatchNorm2d)
    for values in (norm.weight, norm.running_var):
        assert values is not None
        nn.init.uniform_(values, 0.5, 2.0)
    assert norm.running_mean is not None
    nn.init.uniform_(norm.running_mean, -1.0, 1.0)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(("middle", "head")))
    compiled = compile_kit(module, InputSpec((3, 10, 10)), tuple("abcd"), mean=None, std=None, seed=1, whole=not cut)
    return module, compiled, with_shared_weights(compiled.kit, module)


def test_kit_names_frozen_tensors_and_vector_has_trained_ones() -> None:
    module, _, kit = made()
    assert [each.name for each in kit.model.tensors] == ["middle.weight", "middle.bias", "head.weight", "head.bias"]
    held = {each.name: np.frombuffer(each.data, "<f4").reshape(each.shape) for each in kit.frozen}
    assert held.keys() == {
        "trunk.0.weight", "trunk.0.bias", "trunk.1.weight", "trunk.1.bias", "trunk.1.running_mean",
        "trunk.1.running_var", "fixed.weight",
    }  # fmt: skip
    state = module.state_dict()
    for name, values in held.items():
        np.testing.assert_array_equal(values, state[name].numpy())


def test_both_graphs_share_frozen_bytes() -> None:
    _, compiled, kit = made()
    used = {each.name: each.graphs for each in kit.frozen}
    assert used["trunk.0.weight"] == used["fixed.weight"] == ("train", "predict")
    # All but the tensors that were folded with the statistics, and the graphs' small constants.
    saved = len(compiled.kit.train) + len(compiled.kit.predict) - len(kit.train) - len(kit.predict)
    assert saved > 2 * 4 * (16 * 27 + 16 + 96 * 96)


def test_shared_graphs_compute_identical_bits() -> None:
    module, compiled, kit = made()
    assert check_probe(kit, Graphs(kit)) is None
    before, after = Graphs(compiled.kit), Graphs(kit)
    x = np.random.default_rng(1).standard_normal((5, 3, 10, 10)).astype(np.float32)
    y = np.arange(5) % 4
    loss, gradient = before.loss_and_gradient(compiled.initial, x, y)
    again, other = after.loss_and_gradient(compiled.initial, x, y)
    assert again == loss
    np.testing.assert_array_equal(other, gradient)
    logits = after.logits(compiled.initial, x)
    np.testing.assert_array_equal(before.logits(compiled.initial, x), logits)
    with torch.no_grad():
        by_torch = module.eval()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(logits, by_torch, atol=1e-5)


def test_frozen_tensors_behind_trunk_are_stored_once() -> None:
    _, compiled, kit = made(cut=True)
    assert kit.trunk
    used = {each.name: each.graphs for each in kit.frozen}
    assert used["trunk.0.weight"] == ("trunk",)
    assert used["fixed.weight"] == ("train", "predict")
    assert len(pack_blob(kit)) < len(pack_blob(compiled.kit))
    assert check_probe(kit, Graphs(kit)) is None
    before, after = Graphs(compiled.kit), Graphs(kit)
    x = np.random.default_rng(1).standard_normal((5, 3, 10, 10)).astype(np.float32)
    features = after.features(x)
    np.testing.assert_array_equal(features, before.features(x))
    for one, other in zip(
        before.loss_and_gradient(compiled.initial, features, np.arange(5) % 4),
        after.loss_and_gradient(compiled.initial, features, np.arange(5) % 4),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    wanted = after.logits(compiled.initial, features)
    np.testing.assert_allclose(Predictor(bake(kit, compiled.initial)).logits(x), wanted, atol=1e-5)


def test_whole_graph_is_a_plain_onnx_file() -> None:
    for graph in (
        complete_graph(made()[2], "train"),
        complete_graph(made()[2], "predict"),
        complete_graph(made(cut=True)[2], "trunk"),
    ):
        onnx.checker.check_model(onnx.load_from_string(graph), full_check=True)


def test_baked_model_contains_frozen_weights() -> None:
    _, compiled, kit = made()
    x = np.random.default_rng(2).standard_normal((3, 3, 10, 10)).astype(np.float32)
    wanted = Graphs(kit).logits(compiled.initial, x)
    np.testing.assert_allclose(Predictor(bake(kit, compiled.initial)).logits(x), wanted, atol=1e-5)


def test_kit_with_frozen_tensors_round_trips() -> None:
    _, compiled, kit = made()
    assert unpack_blob(pack_blob(kit), Kit) == kit
    assert b"frozen" not in pack_blob(compiled.kit) or compiled.kit.frozen == ()


def test_graph_without_its_weights_does_not_run() -> None:
    """Read the kit as an agent that does not support frozen tensors."""
    _, compiled, kit = made()
    old = Graphs(msgspec.structs.replace(kit, frozen=()))
    x = np.zeros((1, 3, 10, 10), np.float32)
    with pytest.raises(Exception, match="frozen/"):
        old.logits(compiled.initial, x)


def test_false_frozen_tensors_are_rejected() -> None:
    _, compiled, kit = made()
    first = kit.frozen[0]
    lies = {
        "bytes for the shape": (msgspec.structs.replace(first, shape=(1 << 30, 1 << 30)),),
        "two with the same name": (first, first),
        "is both frozen and trained": (msgspec.structs.replace(first, name="head.weight"),),
        "a name that is too long": (msgspec.structs.replace(first, name="n" * 2000),),
    }
    for words, frozen in lies.items():
        with pytest.raises(GraphRefused, match=words):
            Graphs(msgspec.structs.replace(kit, frozen=frozen))
    idle = msgspec.structs.replace(compiled.kit, frozen=(first,))
    with pytest.raises(GraphRefused, match="does not use the supplied tensor"):
        Graphs(idle).logits(compiled.initial, np.zeros((1, 3, 10, 10), np.float32))
    unused = msgspec.structs.replace(compiled.kit, frozen=(msgspec.structs.replace(first, graphs=()),))
    assert Graphs(unused).logits(compiled.initial, np.zeros((1, 3, 10, 10), np.float32)).shape == (1, 4)


@pytest.mark.parametrize("graph", [b"", b"\x08", b"\x08\x09", b"\x3a\xff\xff\xff\x7f12", b"\x0b", b"\xff" * 20])
def test_invalid_graph_is_rejected(graph: bytes) -> None:
    _, _, kit = made()
    with pytest.raises(GraphRefused, match="the graph is rejected"):
        complete_graph(msgspec.structs.replace(kit, train=graph), "train")
