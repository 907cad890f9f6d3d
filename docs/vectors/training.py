"""Vectors for computations outside of the graphs: objectives, optimisers, FedELMY's pool, classifier weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from docs.vectors.cast import SEED, SPEC, TOUR, VISIT
from docs.vectors.cast import START as W_IN
from edge_agent.training import descent, objectives
from edge_agent.training.descent import Prepared
from edge_agent.training.fedelmy import Diverse, distance_scale, shuffled, train_pool
from edge_agent.training.held_out import parted
from hierarchy.edge.records import EdgeState, TourTaken
from sojourn.model.layers import classifier_weights
from sojourn.parts import Dyn, Elmy, Gate, LogitAdjustment, Prox, Sam, Scaffold, Sgd, TourPolicy, Training
from sojourn.protocol.messages import Tour, Visit
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, Probe, TensorSpec
from sojourn.protocol.wire import Task
from sojourn.randomness import derive
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.layers import Layers
    from sojourn.parts import Objective

    Vector = NDArray[np.float32]

CURVE = np.array([1, 2, 0.5, 1, 3, 0.25, 1, 2], np.float32)
TARGET = np.array([0.25, 0.5, -1, 0, 2, 1, -0.5, 0], np.float32)
ASIDE = np.array([0.125, 0, -0.5, 0.25, 0.0625, -0.125, 0, 0.5], np.float32)
CONTROL = np.array([-0.25, 0.5, 0, 0.125, 1, -0.5, 0.25, 0], np.float32)
PLAIN = Training(lr=0.1)
HEAVY = Training(lr=0.1, momentum=0.7, weight_decay=0.01)
STEPS = 3


def make() -> dict[str, list[dict[str, Any]]]:
    """Return the vectors by their keys in vectors.json."""
    return {
        "optimisers": [_optimiser(training) for training in _TRAININGS],
        "objectives": [_objective(*each) for each in _OBJECTIVES],
        "scales": [{"loss": loss, "d2": d2, "scale": float(distance_scale(loss, d2))} for loss, d2 in _DISTANCES],
        "splits": [_split(samples, share) for samples, share in _SHARES],
        "shuffles": [_shuffle(seed) for seed in (0, SEED)],
        "pools": [_pool(*each) for each in _POOLS],
        "classifiers": [_classifier(_LINEAR[from_:]) for from_ in (0, 2)],
        "hops": [_hops(("pi-1", "pi-2", "pi-1"), 0), _hops(("pi-1", "pi-2"), 2)],
    }


def _hex(vector: Vector) -> str:
    return vector.astype("<f4").tobytes().hex()


_TRAININGS = (
    PLAIN,
    HEAVY,
    Training(lr=0.01, optimiser="adam"),
    Training(lr=0.01, optimiser="adam", weight_decay=0.1),
)


def _optimiser(training: Training) -> dict[str, Any]:
    optimiser, w = descent.begin(training), W_IN.copy()
    directions, moved = [CONTROL, ASIDE, TARGET], []
    for direction in directions:
        optimiser.move(w, direction.copy())
        moved.append(_hex(w))
    return {
        "training": msgspec.to_builtins(training),
        "w": _hex(W_IN),
        "directions": [_hex(each) for each in directions],
        "moved": moved,
    }


_OBJECTIVES: tuple[tuple[Objective, Training, dict[str, Vector], dict[str, Vector]], ...] = (
    (Sgd(), PLAIN, {}, {}),
    (Prox(mu=0.3), PLAIN, {}, {}),
    (Prox(mu=0.3), HEAVY, {}, {}),
    (Dyn(a=0.3), PLAIN, {}, {}),
    (Dyn(a=0.3), PLAIN, {}, {"h": ASIDE}),
    (Scaffold(), PLAIN, {"control": CONTROL}, {}),
    (Scaffold(), PLAIN, {"control": CONTROL}, {"control": ASIDE}),
    (Sam(rho=30.0), PLAIN, {}, {}),
    (Sam(rho=30.0), HEAVY, {}, {}),
    (LogitAdjustment(), PLAIN, {"shift": ASIDE}, {}),
    (LogitAdjustment(), HEAVY, {"shift": ASIDE}, {}),
    (Elmy(alpha=0.3, beta=1.7), PLAIN, {"pool_first": W_IN, "pool_mean": W_IN + ASIDE}, {}),
)
"""Objective, training, received vectors, and memory."""


def slope(w: Vector) -> tuple[float, Vector]:
    """Return loss and gradient of a simple function instead of a graph: the sum of curve (w - target)^2 / 2."""
    away = w - TARGET
    return float((CURVE * away * away).sum() / np.float32(2)), CURVE * away


def _objective(
    settings: Objective, training: Training, received: dict[str, Vector], memory: dict[str, Vector]
) -> dict[str, Any]:
    begun = (
        Diverse(settings, received["pool_first"], received["pool_mean"])
        if isinstance(settings, Elmy)
        else objectives.begin(settings, W_IN, received, memory)
    )
    assert begun is not None  # noqa: S101  # all of these are known here
    start = received.get("pool_mean", W_IN)
    optimiser, w, steps = descent.begin(training), start.copy(), []
    for _ in range(STEPS):
        _, direction = begun.direction(w, slope)
        hexed = _hex(direction)  # before the optimiser changes it
        optimiser.move(w, direction)
        steps.append({"direction": hexed, "w": _hex(w)})
    left = begun.end(w, STEPS, training.lr)
    return {
        "objective": msgspec.to_builtins(settings),
        "training": msgspec.to_builtins(training),
        "curve": _hex(CURVE),
        "target": _hex(TARGET),
        "w_in": _hex(W_IN),
        "received": {name: _hex(vector) for name, vector in received.items()},
        "memory": {name: _hex(vector) for name, vector in memory.items()},
        "steps": steps,
        "returned": {name: _hex(vector) for name, vector in left.vectors.items()},
        "remembered": {name: _hex(vector) for name, vector in left.memory.items()},
    }


_DISTANCES = (
    (6.02, 45.0),
    (6.02, 0.45),
    (6.02, 0.045),
    (1.0, 1.0),
    (1.0, 0.5),
    (0.999, 10.0),
    (10.0, 100.0),
    (0.25, 1e6),
    (0.0, 5.0),
    (2.0, 0.0),
)
_SHARES = ((10, 0.1), (25, 0.1), (5, 0.1), (4, 0.1), (1, 0.9), (3, 0.99), (60, 0.25), (10, 0.0))


@dataclass(frozen=True)
class _Samples:
    x: Vector
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[Vector, NDArray[np.int64]]:
        return self.x[index].astype(dtype), self.y[index]


def _split(samples: int, share: float) -> dict[str, Any]:
    everything = _Samples(np.arange(samples, dtype=np.float32), np.arange(samples))
    parts = parted(everything, share)
    places = {"train": parts.training.y.tolist(), "held_out": parts.validation.y.tolist() if parts.validation else []}
    return {"samples": samples, "validation": share, **places}


def _shuffle(seed: int) -> dict[str, Any]:
    tensors = [[tensor.name, list(tensor.shape)] for tensor in SPEC.tensors]
    return {"seed": seed, "tensors": tensors, "vector": _hex(W_IN), "shuffled": _hex(shuffled(W_IN, SPEC, seed))}


class _Bowl:
    """A substitute for a kit's graphs: the loss is the mean of |w - x|^2 / 2, the logits are (w x, -w x)."""

    def loss_and_gradient(
        self, vector: Vector, x: Vector, y: NDArray[np.int64], noise: list[Vector]
    ) -> tuple[float, Vector]:
        del y, noise
        away = vector - x
        return float((away * away).sum() / np.float32(2 * len(x))), away.mean(axis=0)

    def logits(self, vector: Vector, x: Vector) -> Vector:
        answers: Vector = np.stack([x @ vector, -(x @ vector)], axis=1)
        return answers


_POOLS = (
    (Elmy(models=2, alpha=0.5, beta=1.0, warmup=2, validation=0.25), 0),
    (Elmy(models=2, alpha=0.5, beta=1.0, warmup=2, validation=0.25, start="own"), 0),
    (Elmy(models=2, alpha=0.5, beta=1.0, warmup=2, validation=0.25, start="own"), 3),
    (Elmy(models=2, alpha=0.5, beta=1.0, warmup=0, validation=0.0), 0),
)
POOL_TRAINING = Training(epochs=3, batch=4, lr=0.5)
X = np.array([[((7 * row + 5 * at * at + row * at) % 17 - 8) / 4 for at in range(8)] for row in range(12)], np.float32)
Y = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0])
_NOTHING = ref_of(b"")


def _pool(settings: Elmy, earlier: int) -> dict[str, Any]:
    kit = Kit(SPEC, InputSpec((8,)), ("a", "b"), (), b"", b"", Probe(b"", (), 0, 0.0, 0.0, (), ()))
    prepared = Prepared(kit, _Bowl(), _Samples(X, Y))  # type: ignore[arg-type]
    task = Task("train", POOL_TRAINING, settings, "float32", 1)
    visit = Visit(VISIT, _NOTHING, {}, task, SEED, 60.0, earlier)
    end, passed = train_pool(W_IN, settings, prepared, visit, lambda _step, _steps: None)
    return {
        "objective": msgspec.to_builtins(settings),
        "training": msgspec.to_builtins(POOL_TRAINING),
        "tensors": [[tensor.name, list(tensor.shape)] for tensor in SPEC.tensors],
        "seed": SEED,
        "earlier": earlier,
        "x": [_hex(row) for row in X],
        "y": Y.tolist(),
        "model": _hex(W_IN),
        "steps": sum(epoch.steps for epoch in passed),
        "trained": _hex(end),
    }


_LINEAR = ("first.weight", "middle.weight", "last.weight")


def _classifier(linear: tuple[str, ...]) -> dict[str, Any]:
    tensors = (("last.weight", (2, 1)), ("last.bias", (2,)), ("first.weight", (2, 1)), ("middle.weight", (1, 2)))
    model = ModelSpec(tuple(TensorSpec(name, shape) for name, shape in tensors))
    kit = Kit(model, InputSpec((2,)), ("a", "b"), (), b"", b"", Probe(b"", (), 0, 0.0, 0.0, (), ()), linear)
    layers: tuple[Layers, ...] = ("all", "last-two", "last")
    return {
        "tensors": [[name, list(shape)] for name, shape in tensors],
        "linear": list(linear),
        "vector": _hex(W_IN),
        **{each: _hex(classifier_weights(kit, W_IN, each)) for each in layers},
    }


def _hops(route: tuple[str, ...], merges: int) -> dict[str, Any]:
    task, seed = Task("train", Training(), Sgd(), "float32", 1), derive(7, "train", 1)
    tour = Tour(TOUR, _NOTHING, {"model": _NOTHING}, route, (), task, seed, TourPolicy(), Gate(), (), merges)
    state = EdgeState()
    state.apply(TourTaken(tour))
    (led,) = state.tours.values()
    devices = [(hop, route[led.place(hop)]) for hop in range(led.visits)]
    visits = [{"hop": hop, "device": device, "seed": derive(seed, device, led.repeat(hop))} for hop, device in devices]
    return {"route": list(route), "merges": merges, "seed": seed, "visits": visits}
