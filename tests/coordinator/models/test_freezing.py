"""Tests of the patterns of trained tensors."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from coordinator.models.start_weights import freeze
from sojourn.errors import ModelError


def net() -> Any:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))


def trained(module: nn.Module) -> list[str]:
    return [name for name, each in module.named_parameters() if each.requires_grad]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]),
        (["*"], ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]),
        (["2.*"], ["2.weight", "2.bias"]),
        (["0.bias", "[12].weight"], ["0.bias", "1.weight", "2.weight"]),
    ],
)
def test_patterns_select_trained_tensors(patterns: list[str], names: list[str]) -> None:
    module = net()
    freeze(module, patterns)
    assert trained(module) == names


def test_unmatched_pattern_lists_tensor_names() -> None:
    with pytest.raises(
        ModelError, match=r"model.trains: no tensor of the model matches 'head.\*'; its tensors are 0.weight, 0.b"
    ):
        freeze(net(), ["2.*", "head.*"])


def test_tensors_frozen_by_the_model_stay_frozen() -> None:
    module = net()
    module[2].bias.requires_grad_(False)
    freeze(module, ["2.*"])
    assert trained(module) == ["2.weight"]
