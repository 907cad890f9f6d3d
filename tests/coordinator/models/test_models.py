"""Tests of models by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from coordinator.models import build
from sojourn.errors import ModelError
from sojourn.protocol.spec import InputSpec


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize(
    ("name", "shape", "options", "size"),
    [
        ("mlp", (64,), {}, 4810),
        ("mlp", (1, 8, 8), {"hidden": [32, 16]}, 2778),
        ("cnn", (1, 28, 28), {}, 105866),
        ("cnn", (3, 32, 32), {}, 136874),
        ("cnn", (1, 8, 8), {"dropout": 0.2}, 13706),
        ("resnet8", (3, 32, 32), {}, 78042),
        ("resnet8", (1, 28, 28), {"width": 8}, 19810),
    ],
)
def test_built_in_models_have_expected_outputs_and_size(
    name: str, shape: tuple[int, ...], options: dict[str, object], size: int
) -> None:
    model = build(name, InputSpec(shape), 10, options, seed=1)
    assert model(torch.zeros(3, *shape)).shape == (3, 10)
    assert flat(model).numel() == size


def test_weights_depend_only_on_the_seed() -> None:
    spec = InputSpec((6,))
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = flat(build("mlp", spec, 2, {}, seed=5))
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(first, flat(build("mlp", spec, 2, {}, seed=5)))
    assert not torch.equal(first, flat(build("mlp", spec, 2, {}, seed=6)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet", {}, "'resnet8'"),
        ("mlp", {"hiden": 3}, "did you mean 'hidden'"),
        ("mlp", {"classes": 3}, "no option 'classes'"),
        ("cnn", {}, "images"),
        ("nowhere.at_all:Net", {}, "cannot be imported"),
        ("torch.nn:Liner", {}, "did you mean 'Linear'"),
        ("torch.nn:functional", {}, "not a class of torch.nn.Module"),
        ("torch.nn:Linear", {"in_feature": 3}, "did you mean 'in_features'"),
        ("torch.nn:Linear", {"in_features": 3}, "cannot be built"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build(name, InputSpec((6,)), 2, options, seed=1)


def test_custom_model_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model_for_test.py").write_text(
        "from torch import nn\nclass Net(nn.Sequential):\n    def __init__(self, wide: int):\n"
        "        super().__init__(nn.Linear(6, wide), nn.Linear(wide, 2))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build("own_model_for_test:Net", InputSpec((6,)), 2, {"wide": 5}, seed=1)
    assert flat(model).numel() == 47
    sys.modules.pop("own_model_for_test")
