"""Tests that errors of models that cannot be compiled name the layer and a replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from coordinator.compiling import compile_kit
from sojourn.errors import ModelError
from sojourn.parts import Outliers
from sojourn.protocol.spec import InputSpec
from tests.coordinator.compiling.refused_cases import REFUSED_CASES, RefusedCase

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = ("a", "b")
FLAT = InputSpec((6,))


def refusal(module: nn.Module, spec: InputSpec = FLAT, **options: list[float]) -> str:
    with pytest.raises(ModelError) as caught:
        compile_kit(module, spec, CLASSES, mean=options.get("mean"), std=options.get("std"), seed=1)
    return str(caught.value)


class Inner(nn.Module):
    """A linear model with a given forward pass."""

    count: Tensor

    def __init__(self, forward: object) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("count", torch.zeros(()))
        self.body = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)  # type: ignore[no-any-return,operator]


def counting(inner: Inner, x: Tensor) -> Tensor:
    inner.count += 1
    return inner.linear(x)  # type: ignore[no-any-return]


def branching(inner: Inner, x: Tensor) -> Tensor:
    logits: Tensor = inner.linear(x) if x.sum() > 0 else inner.linear(-x)
    return logits


def by_batch(inner: Inner, x: Tensor) -> Tensor:
    logits: Tensor = inner.linear(x) if x.shape[0] < 20 else inner.linear(x.abs())
    return logits


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (counting, ["'1' (Inner)", "buffer", "count"]),
        (branching, ["'1' (Inner)"]),
        (by_batch, ["batch size"]),
    ],
)
def test_impure_model_is_rejected(body: object, words: list[str]) -> None:
    text = refusal(nn.Sequential(nn.Tanh(), Inner(body)))
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("case", REFUSED_CASES, ids=lambda case: case.what)
def test_rejection_names_layer_and_alternative(case: RefusedCase) -> None:
    with pytest.raises(ModelError) as caught:
        compile_kit(case.model(), case.spec, ("a", "b", "c"), mean=None, std=None, seed=1)
    assert [word for word in case.words if word not in str(caught.value)] == []


@pytest.mark.parametrize("function", [torch.lgamma, lambda x: torch.cummax(x, 1).values], ids=["lgamma", "cummax"])
def test_untranslatable_operator_names_its_layer(function: Callable[[Tensor], Tensor]) -> None:
    text = refusal(nn.Sequential(nn.Tanh(), Inner(lambda inner, x: inner.linear(function(x)))))
    assert "'1' (Inner)" in text
    assert "cannot be translated into a graph" in text
    assert "OpOverload" not in text


def test_unsuitable_model_reports_reason() -> None:
    assert "'0' (Linear)" in refusal(nn.Sequential(nn.Linear(7, 2)))
    assert "(2, 3)" in refusal(nn.Linear(6, 3))
    assert "no trainable tensor" in refusal(nn.Flatten())


def test_outlier_job_needs_one_output_more_than_classes() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(
        ModelError, match=r"2 classes and one more for unknown samples.*Use a last layer with 3 outputs"
    ):
        compile_kit(module, InputSpec((1, 4, 4)), CLASSES, mean=None, std=None, seed=1, outliers=Outliers())
    assert "float32" in refusal(nn.Linear(6, 2).double())


def test_wrong_output_is_explained_in_plain_words() -> None:
    single = refusal(nn.Linear(6, 1))
    assert "(2, 1)" in single
    assert "use a last layer with 2 outputs" in single
    assert "use a last layer with 2 outputs" in refusal(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)))
    assert "3 outputs, and the data has 2 classes" in refusal(nn.Linear(6, 3))
    assert "or flatten them" in refusal(nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Linear(6, 2)))
    assert "returns a tuple" in refusal(Inner(lambda inner, x: (inner.linear(x), x)))


def test_invalid_normalisation_is_rejected() -> None:
    assert "std must be above 0" in refusal(nn.Linear(6, 2), std=[0.0])
    assert "5 values" in refusal(nn.Linear(6, 2), mean=[0.0] * 5)
    assert "int64" in refusal(nn.Linear(6, 2), InputSpec((6,), "int64"), mean=[0.0])


class Recurrent(nn.Module):
    """A recurrent cell in a loop."""

    def __init__(self, layer: nn.GRUCell) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 5)
        for step in x.unbind(1):
            h = self.layer(step, h)
        return self.head(h)  # type: ignore[no-any-return]


def test_recurrent_cell_in_a_loop_compiles() -> None:
    kit = compile_kit(Recurrent(nn.GRUCell(3, 5)), InputSpec((2, 3)), CLASSES, mean=None, std=None, seed=1).kit
    assert kit.model.size == 3 * 5 * (3 + 5 + 2) + 2 * (5 + 1)


@pytest.mark.parametrize("module", [nn.Linear(6, 1), nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))])
def test_single_output_explains_classifier_outputs(module: nn.Module) -> None:
    text = refusal(module)
    assert "one number for each class. A single output" in text
    assert "use a last layer with 2 outputs" in text
