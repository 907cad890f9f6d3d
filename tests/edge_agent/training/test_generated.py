"""FedGen on the device: a step compared with its pseudo-code in torch, and limiting cases."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from coordinator.compiling import compile_kit
from coordinator.finishers.fedgen import first_generator
from edge_agent.training.fedgen import GeneratedSteps, seen_of_each
from edge_agent.training.visit_vectors import Unsupported
from sojourn.errors import ModelError
from sojourn.model.generator import GeneratorLayout
from sojourn.model.graphs import Graphs
from sojourn.parts import Generated
from sojourn.protocol.spec import InputSpec, Kit
from sojourn.randomness import generator

SETTINGS = Generated(noise=4, hidden=6, made=7)
INPUT = InputSpec((5,))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


@cache
def compiled() -> tuple[Kit, np.ndarray[Any, Any]]:
    made = compile_kit(network(), INPUT, ("a", "b", "c"), mean=None, std=None, seed=1, soft=True)
    return made.kit, made.initial


def batch(rows: int = 4) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    draw = np.random.default_rng(2)
    return draw.normal(size=(rows, 5)).astype(np.float32), np.arange(rows) % 3


def made_by() -> np.ndarray[Any, Any]:
    vector = first_generator(SETTINGS, compiled()[0], 1)["generator"]
    GeneratorLayout.of(SETTINGS, compiled()[0]).split(vector)["there"][...] = (1, 0, 1)
    return vector


def steps(a: float, b: float) -> GeneratedSteps:
    kit = compiled()[0]
    return GeneratedSteps(kit, SETTINGS, made_by(), (a, b), 9, Graphs(kit))


@pytest.mark.parametrize(("a", "b"), [(0.0, 3.0), (2.0, 0.0), (2.0, 3.0)])
def test_step_matches_the_pseudo_code(a: float, b: float) -> None:
    kit, vector = compiled()
    x, y = batch()
    loss, gradient, _ = steps(a, b).loss_gradient_and_state(vector, x, y)
    module, layout = network(), GeneratorLayout.of(SETTINGS, kit)
    draw = generator(9, "generated", 0)
    z = torch.tensor(layout.make(made_by(), draw.random((4, 4), dtype=np.float32), y))
    plain = functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y))
    whole = plain
    if b:
        like = module[2](z).softmax(1).detach()
        whole = whole + b * functional.kl_div(module(torch.tensor(x)).log_softmax(1), like, reduction="batchmean")
    if a:
        classes = np.array([0, 2])[draw.integers(0, 2, 7)]
        other = torch.tensor(layout.make(made_by(), draw.random((7, 4), dtype=np.float32), classes))
        whole = whole + a * functional.cross_entropy(module[2](other), torch.tensor(classes))
    whole.backward()
    wanted = torch.cat([each.grad.reshape(-1) for each in module.parameters() if each.grad is not None]).numpy()
    assert loss == pytest.approx(float(plain.detach()), rel=1e-5)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-5)


def test_second_weight_zero_trains_the_trunk_as_usual() -> None:
    _, vector = compiled()
    x, y = batch()
    _, plain = Graphs(compiled()[0]).loss_and_gradient(vector, x, y)
    gradient = steps(5.0, 0.0).loss_gradient_and_state(vector, x, y)[1]
    assert np.array_equal(gradient[:36], plain[:36])  # the first layer: 5 x 6 and 6
    assert not np.array_equal(gradient[36:], plain[36:])


def test_each_step_draws_new_samples_reproducibly() -> None:
    _, vector = compiled()
    x, y = batch()
    one, other = steps(2.0, 3.0), steps(2.0, 3.0)
    first = one.loss_gradient_and_state(vector, x, y)[1]
    assert np.array_equal(first, other.loss_gradient_and_state(vector, x, y)[1])
    assert not np.array_equal(first, one.loss_gradient_and_state(vector, x, y)[1])


def test_weights_start_in_round_one_and_decay_each_round() -> None:
    settings = Generated(a=10, b=1)
    assert settings.weights(0) == (0, 0)
    assert settings.weights(1) == pytest.approx((9.8, 0.98))
    assert settings.weights(5000) == (1e-4, 1e-4)
    assert Generated(a=0, b=0).weights(7) == (0, 0)


def test_kit_without_soft_label_graph_is_refused() -> None:
    plain = compile_kit(network(), INPUT, ("a", "b", "c"), mean=None, std=None, seed=1).kit
    with pytest.raises(Unsupported, match="no training graph with soft targets"):
        GeneratedSteps(plain, SETTINGS, made_by(), (1.0, 1.0), 0, Graphs(plain))


def test_unsupported_models_are_refused_with_a_reason() -> None:
    normed = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.raises(ModelError, match='batchnorm = "frozen"'):
        compile_kit(normed, INPUT, ("a", "b", "c"), mean=None, std=None, seed=1, soft=True)
    bent = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3), nn.Tanh())
    with pytest.raises(ModelError, match="directly from a linear layer"):
        compile_kit(bent, INPUT, ("a", "b", "c"), mean=None, std=None, seed=1, soft=True)


def test_class_counts_of_a_visit_start_at_one() -> None:
    class Some:
        y = np.array([0, 0, 2])

    assert seen_of_each(Some(), 4, epochs=3).tolist() == [7, 1, 4, 1]  # type: ignore[arg-type]
