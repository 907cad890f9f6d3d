"""MA-Echo on the device: the projections compared with their formulas, and the layers' inputs with torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import compile_kit
from edge_agent.training.descent import Prepared
from edge_agent.training.ma_echo import classes_present, compressed, mean_inputs, narrow, projections
from edge_agent.training.visit_vectors import Unsupported
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.model.vectors import vector_length
from sojourn.parts import Echo
from sojourn.protocol.spec import InputSpec, Kit, TapLayer

IMAGE = InputSpec((1, 6, 5))


class Net(nn.Module):
    """Two convolutions, the second with padding and without bias, and two fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 2, padding=1, bias=False)
        self.hidden, self.last = nn.Linear(2 * 5 * 4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.relu(self.first(x))).relu().flatten(1)
        return self.last(self.hidden(x).relu())  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.last = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.same(self.same(x)))  # type: ignore[no-any-return]


@cache
def compiled() -> tuple[Kit, np.ndarray[Any, Any], Net]:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Net()
    made = compile_kit(net, IMAGE, ("a", "b", "c"), mean=[0.5], std=[2.0], seed=0, whole=True, taps=True)
    return made.kit, made.initial, net


class Held:
    """Samples in memory."""

    def __init__(self, count: int = 7) -> None:
        self.x = np.random.default_rng(1).random((count, 1, 6, 5)).astype(np.float32)
        self.y = np.array([0, 0, 1, 2, 2, 2, 0][:count])

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: Any, dtype: str) -> tuple[Any, Any]:
        return self.x[index].astype(dtype), self.y[index]


def prepared(count: int = 7) -> Prepared:
    kit, *_ = compiled()
    return Prepared(kit, Graphs(kit), Held(count))


def given_in_torch(x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    _, _, net = compiled()
    first = (torch.from_numpy(x) - 0.5) / 2.0
    second = net.first(first).relu()
    hidden = net.second(second).relu().flatten(1)
    last = net.hidden(hidden).relu()
    return [each.detach().numpy() for each in (first, second, hidden, last)]


def test_layer_inputs_match_torch() -> None:
    kit, initial, _ = compiled()
    x = Held(5).x
    assert kit.more
    assert kit.more.taps
    layers = kit.more.taps.layers
    assert [layer.weight for layer in layers] == ["first.weight", "second.weight", "hidden.weight", "last.weight"]
    assert [(layer.bias, layer.kernel, layer.inputs) for layer in layers] == [
        ("first.bias", (3, 3), 10), ("", (2, 2), 8), ("hidden.bias", (), 41), ("last.bias", (), 5),
    ]  # fmt: skip
    for found, expected in zip(Graphs(kit).taps(initial, x), given_in_torch(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_layer_that_runs_twice_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="the layer same runs 2 times"):
        compile_kit(Twice(), InputSpec((4,)), ("a", "b"), mean=None, std=None, seed=0, whole=True, taps=True)


def rs(x: np.ndarray[Any, Any], batch: int) -> list[list[np.ndarray[Any, Any]]]:
    """Return the mean inputs of the three layers with projections."""
    found: list[list[np.ndarray[Any, Any]]] = [[], [], []]
    for at in range(0, len(x), batch):
        means = [each.astype(np.float64).mean(0) for each in given_in_torch(x[at : at + batch])]
        for r, c in [(r, c) for r in (0, 2) for c in (0, 2)]:
            found[0].append(np.append(means[0][:, r : r + 3, c : c + 3].ravel(), 1.0))
        for r, c in [(r, c) for r in (0, 2) for c in (0,)]:
            found[1].append(means[1][:, r : r + 2, c : c + 2].ravel())
        found[2].append(np.append(means[2], 1.0))
    return found


def split(vector: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [
        vector[:100].reshape(10, 10),
        vector[100:164].reshape(8, 8),
        vector[164:1845].reshape(41, 41),
        vector[1845:],
    ]


@pytest.mark.parametrize("form", ["damped", "exact"])
def test_projections_match_the_formula(form) -> None:
    settings = Echo(form=form, a_dense=0.3, a_conv=0.2)
    vector = projections(settings, prepared(), compiled()[1], 3)
    assert len(vector) == vector_length("projections", settings, compiled()[0])
    *found, classes = split(vector)
    assert classes.tolist() == [1, 0, 1]  # one sample is not enough
    for p, inputs, a in zip(found, rs(Held().x, 3), (0.2, 0.2, 0.3), strict=True):
        if form == "exact":
            expected = a * np.linalg.inv(a * np.eye(len(p)) + sum(np.outer(r, r) for r in inputs))
        else:
            expected = np.eye(len(p))
            for r in inputs:
                pr = expected @ r
                expected = expected - 0.5 * np.outer(pr, pr) / (a + r @ expected @ r)
        np.testing.assert_allclose(p, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("knob", [{"form": "exact"}, {"a_dense": 0.1}, {"a_conv": 0.1}, {"rank": 2}], ids=str)
def test_every_parameter_changes_the_projections(knob) -> None:
    plain, turned = (projections(it, prepared(), compiled()[1], 3) for it in (Echo(), Echo(**knob)))
    assert plain.shape != turned.shape or not np.array_equal(plain, turned)


def test_exact_form_is_order_independent_and_damped_is_not() -> None:
    random = np.random.default_rng(0)
    inputs = random.normal(size=(5, 4))

    def narrowed(exact: bool, order: Any) -> Any:
        found = np.eye(4)
        for r in inputs[order]:
            narrow(found, r, 0.1, exact)
        return found

    forward, backward = range(5), range(4, -1, -1)
    np.testing.assert_allclose(narrowed(True, list(forward)), narrowed(True, list(backward)), atol=1e-12)
    assert np.abs(narrowed(False, list(forward)) - narrowed(False, list(backward))).max() > 1e-3


def test_low_rank_directions_reproduce_the_projection() -> None:
    random = np.random.default_rng(0)
    p = np.eye(6)
    for r in random.normal(size=(2, 6)):
        narrow(p, r, 0.01, True)
    q = compressed(p, 2)
    np.testing.assert_allclose(np.eye(6) - q @ q.T, p, atol=1e-12)  # two inputs, two directions
    assert np.abs(np.eye(6) - compressed(p, 1) @ compressed(p, 1).T - p).max() > 0.1
    assert compressed(p, 0) is p
    assert compressed(p, 99).shape == (6, 6)
    settings = Echo(rank=3)
    assert vector_length("projections", settings, compiled()[0]) == 3 * (10 + 8 + 41) + 3


def test_sequence_inputs_are_averaged_over_their_positions() -> None:
    given = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    (r,) = mean_inputs(given, TapLayer("w", "", (3, 2)))
    assert r.tolist() == [5.0, 6.0]


def test_projections_over_the_memory_limit_are_refused() -> None:
    with pytest.raises(Unsupported, match=r"take 0 MB, and objective.memory = 0.001"):
        projections(Echo(memory=0.001), prepared(), compiled()[1], 3)
    assert classes_present(prepared(2)).tolist() == [1, 0, 0]
