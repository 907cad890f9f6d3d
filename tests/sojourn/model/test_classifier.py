"""Selection of the classifier's weights in a model's vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sojourn.errors import JobError
from sojourn.model.layers import classifier_slices, classifier_weights
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, TensorSpec
from tests.sojourn.protocol.examples import kit_without_graphs

SPEC = ModelSpec(
    (
        TensorSpec("conv.weight", (2, 1, 1, 1)),
        TensorSpec("one.weight", (2, 3)),
        TensorSpec("one.bias", (2,)),
        TensorSpec("two.weight", (1, 2)),
        TensorSpec("two.bias", (1,)),
        TensorSpec("three.weight", (3, 1)),
    )
)


def kit(*linear: str) -> Kit:
    return kit_without_graphs(SPEC, InputSpec((3,)), ("a", "b"), *linear)


@pytest.mark.parametrize(
    ("layers", "numbers"),
    [
        ("all", [2, 3, 4, 5, 6, 7, 10, 11, 13, 14, 15]),
        ("last-two", [10, 11, 13, 14, 15]),
        ("last", [13, 14, 15]),
    ],
)
def test_classifier_weights_are_dense_layers_without_biases(layers: Any, numbers: list[int]) -> None:
    vector = np.arange(SPEC.size, dtype=np.float32)
    found = classifier_weights(kit("one.weight", "two.weight", "three.weight"), vector, layers)
    assert found.dtype == np.float32
    assert found.tolist() == numbers


def test_single_dense_layer_is_the_whole_classifier() -> None:
    only = kit("two.weight")
    for layers in ("all", "last-two", "last"):
        assert classifier_slices(only, layers) == (slice(10, 12),)


def test_model_without_dense_layer_is_rejected() -> None:
    with pytest.raises(JobError, match="no fully connected layer"):
        classifier_slices(kit(), "all")
