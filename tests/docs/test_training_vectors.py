"""An independent implementation of training, from docs/protocol.md alone, gives the values of docs/vectors.json.

It uses the page's formulas and none of the agent's code: in float64, so within a relative 1e-5; and in float32, rounded
as on the page, to the bit.
"""

from __future__ import annotations

import re
from hashlib import sha256
from math import prod, sqrt
from typing import Any

import numpy as np
import pytest

from tests.docs.test_protocol import PAGE, VECTORS


def root(x: Any) -> Any:
    """Return the square root of a number, in its own type."""
    return np.sqrt(x) if isinstance(x, np.float32) else sqrt(x)


PAGES: dict[str, Any] = {"sha256": sha256, "sqrt": root}
for _block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(compile(_block, "docs/protocol.md", "exec"), PAGES)


both = pytest.mark.parametrize("form", [np.float64, np.float32])


def numbers(digits: str, form: type = np.float64) -> np.ndarray[Any, Any]:
    return np.frombuffer(bytes.fromhex(digits), "<f4").astype(form)


def assert_same(ours: Any, digits: str) -> None:
    """Check for the same bits, or for the same number if computed more exactly."""
    if ours.dtype == np.float32:
        assert ours.astype("<f4").tobytes().hex() == digits
    np.testing.assert_allclose(ours, numbers(digits), rtol=1e-5, atol=1e-6)


class Optimiser:
    """The page's section on optimisers."""

    def __init__(self, training: dict[str, Any], like: Any) -> None:
        self.training, self.m, self.v, self.step = training, np.zeros_like(like), np.zeros_like(like), 0

    def moved(self, w: Any, d: Any) -> Any:
        of, self.step = self.training, self.step + 1
        d = d + of["weight_decay"] * w
        if of["optimiser"] == "adam":
            rows = [PAGES["adam"](*each, self.step, of["lr"]) for each in zip(w, self.m, self.v, d, strict=True)]
            w, self.m, self.v = (np.array(column) for column in zip(*rows, strict=True))
            return w
        self.v = of["momentum"] * self.v + d
        return w - of["lr"] * self.v


@both
@pytest.mark.parametrize("vector", VECTORS["optimisers"], ids=lambda vector: str(vector["training"]))
def test_optimiser_steps_match_the_page(vector, form):
    w = numbers(vector["w"], form)
    optimiser = Optimiser(vector["training"], w)
    for direction, moved in zip(vector["directions"], vector["moved"], strict=True):
        w = optimiser.moved(w, numbers(direction, form))
        assert_same(w, moved)


def diverse(w: Any, loss: float, gradient: Any, first: Any, mean: Any, asked: dict[str, Any]) -> Any:
    pull = asked["beta"] * (w - first) - asked["alpha"] * (w - mean)
    twice = 2 * PAGES["scale"](loss, float(np.sum((w - first) ** 2)))
    return gradient + (pull.astype(np.float64) * twice).astype(pull.dtype)


def companions(vector: dict[str, Any], form: Any) -> list[dict[str, Any]]:
    """Return the vectors that were received, and those remembered."""
    return [{name: numbers(it, form) for name, it in vector[key].items()} for key in ("received", "memory")]


def direction_of(vector: dict[str, Any], w: Any) -> Any:
    """Return the direction, from the page's table of directions."""
    asked, (received, memory) = vector["objective"], companions(vector, w.dtype)
    w_in, curve, target = (numbers(vector[name], w.dtype) for name in ("w_in", "curve", "target"))
    g = curve * (w - target)
    match asked["name"]:
        case "sgd":
            return g
        case "prox":
            return g + asked["mu"] * (w - w_in)
        case "dyn":
            return g - memory.get("h", 0.0) + asked["a"] * (w - w_in)
        case "scaffold":
            return g - memory.get("control", 0.0) + received["control"]
        case "sam":
            return curve * (w + g * (asked["rho"] / np.sqrt(np.sum(g * g))) - target)
        case "logit-adjustment":
            return curve * (w + received["shift"] - target)
        case "elmy":
            loss = float(np.sum(curve * (w - target) ** 2) / 2)
            return diverse(w, loss, g, received["pool_first"], received["pool_mean"], asked)
        case other:
            raise AssertionError(other)


def left_by(vector: dict[str, Any], w_out: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is returned and remembered, by the page."""
    asked, w_in = vector["objective"], numbers(vector["w_in"], w_out.dtype)
    received, memory = companions(vector, w_out.dtype)
    if asked["name"] == "dyn":
        return {}, {"h": memory.get("h", 0.0) - asked["a"] * (w_out - w_in)}
    if asked["name"] == "scaffold":
        c, c_k = received["control"], memory.get("control", 0.0)
        mine = c_k - c + (w_in - w_out) / (len(vector["steps"]) * vector["training"]["lr"])
        return {"control_delta": mine - c_k}, {"control": mine}
    return {}, {}


@both
@pytest.mark.parametrize("vector", VECTORS["objectives"], ids=lambda vector: str(vector["objective"]))
def test_objectives_match_the_page(vector, form):
    w = numbers(vector["received"].get("pool_mean", vector["w_in"]), form)
    optimiser = Optimiser(vector["training"], w)
    for step in vector["steps"]:
        d = direction_of(vector, w)
        assert_same(d, step["direction"])
        w = optimiser.moved(w, d)
        assert_same(w, step["w"])
    for ours, key in zip(left_by(vector, w), ("returned", "remembered"), strict=True):
        assert ours.keys() == vector[key].keys()
        for name, it in ours.items():
            assert_same(it, vector[key][name])


def test_every_built_in_objective_has_a_vector():
    listed = set(re.findall(r"^#### Objective `([\w-]+)`$", PAGE, re.MULTILINE))
    in_graphs = {"feature-match", "mmd", "moon", "fusion"}  # a device computes none of these itself
    # A device with a personal model follows the plain gradient, or a graph's; only its start differs.
    starts = {"local-norms", "common", "echo", "outliers", "generated"}
    assert {vector["objective"]["name"] for vector in VECTORS["objectives"]} == listed - {"own", *in_graphs, *starts}


@pytest.mark.parametrize("vector", VECTORS["scales"], ids=str)
def test_loss_scales_match_the_page(vector):
    assert PAGES["scale"](vector["loss"], vector["d2"]) == vector["scale"]


@pytest.mark.parametrize("vector", VECTORS["splits"], ids=lambda vector: f"{vector['samples']} {vector['validation']}")
def test_validation_splits_match_the_page(vector):
    assert PAGES["split"](vector["samples"], vector["validation"]) == (vector["train"], vector["held_out"])


def shuffled(model: Any, tensors: list[Any], seed: int) -> Any:
    pieces, at = [], 0
    for name, shape in tensors:
        pieces += PAGES["shuffled"](model[at : at + prod(shape)], seed, name)
        at += prod(shape)
    return np.array(pieces)


@pytest.mark.parametrize("vector", VECTORS["shuffles"], ids=lambda vector: str(vector["seed"]))
def test_shuffles_match_the_page(vector):
    made = shuffled(numbers(vector["vector"]), vector["tensors"], vector["seed"])
    assert made.tolist() == numbers(vector["shuffled"]).tolist()
    assert made.tolist() != numbers(vector["vector"]).tolist()


class Pool:
    """The page's five points on a visit of `elmy`."""

    def __init__(self, vector: dict[str, Any]) -> None:
        self.asked, self.training, self.seed = vector["objective"], vector["training"], vector["seed"]
        self.x, self.y = np.array([numbers(row) for row in vector["x"]]), np.array(vector["y"])
        self.training, self.held_out = PAGES["split"](len(self.y), self.asked["validation"])
        self.steps = 0

    def train(self, w: Any, epochs: int, name: str, first: Any = None) -> Any:
        """Return the model after each epoch; without the pool's first model, along the plain gradient."""
        seed, mean, optimiser = PAGES["derive"](self.seed, name), w, Optimiser(self.training, w)
        for epoch in range(epochs):
            places = [self.training[at] for at in PAGES["order"](seed, epoch, len(self.training))]
            for at in range(0, len(places), self.training["batch"]):
                away = w - self.x[places[at : at + self.training["batch"]]]
                d, loss = away.mean(axis=0), float(np.sum(away**2, axis=1).mean() / 2)
                w = optimiser.moved(w, d if first is None else diverse(w, loss, d, first, mean, self.asked))
                self.steps += 1
            yield w

    def right(self, w: Any) -> int:
        answers = self.x[self.held_out] @ w
        return int(np.sum(np.where(answers >= 0, 0, 1) == self.y[self.held_out]))

    def grown(self, model: Any, earlier: int, tensors: list[Any]) -> Any:
        if not earlier and self.asked["start"] == "own":
            model = shuffled(model, tensors, self.seed)
        for w in self.train(model, 0 if earlier else self.asked["warmup"], "warm-up"):
            model = w
        pool = [model]
        for number in range(1, self.asked["models"] + 1):
            epochs = list(self.train(np.mean(pool, axis=0), self.training["epochs"], f"model {number}", model))
            scores = [self.right(w) for w in epochs]
            pool.append(epochs[scores.index(max(scores))] if self.held_out else epochs[-1])
        return np.mean(pool, axis=0)


@pytest.mark.parametrize("vector", VECTORS["pools"], ids=lambda vector: f"{vector['objective']} {vector['earlier']}")
def test_pools_match_the_page(vector):
    pool = Pool(vector)
    assert_same(pool.grown(numbers(vector["model"]), vector["earlier"], vector["tensors"]), vector["trained"])
    assert pool.steps == vector["steps"]


def test_pools_differ_by_warm_up_start_and_validation():
    assert len({vector["trained"] for vector in VECTORS["pools"]}) == len(VECTORS["pools"])


@pytest.mark.parametrize("vector", VECTORS["classifiers"], ids=lambda vector: str(vector["linear"]))
def test_classifier_weights_match_the_page(vector):
    whole, places, at = numbers(vector["vector"]), {}, 0
    for name, shape in vector["tensors"]:
        places[name] = whole[at : at + prod(shape)].tolist()
        at += prod(shape)
    for layers, count in (("all", len(vector["linear"])), ("last-two", 2), ("last", 1)):
        wanted = [number for name in vector["linear"][-count:] for number in places[name]]
        assert numbers(vector[layers]).tolist() == wanted


@pytest.mark.parametrize("vector", VECTORS["hops"], ids=lambda vector: str(vector["merges"]))
def test_hops_and_their_seeds_match_the_page(vector):
    route, derive = vector["route"], PAGES["derive"]
    wanted = [
        {"hop": len(route) * wave + place, "device": device, "seed": derive(vector["seed"], device, before)}
        for wave in range(max(1, vector["merges"]))
        for place, device in enumerate(route)
        for before in [wave if vector["merges"] else route[:place].count(device)]
    ]
    assert vector["visits"] == wanted
