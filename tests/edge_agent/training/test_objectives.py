"""Each objective compared with its pseudo-code in float64 numpy, on a small least-squares problem."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from edge_agent.training import descent, objectives
from edge_agent.training.objectives import VisitOutput
from sojourn.parts import Dyn, Elmy, Prox, Sam, Scaffold, Sgd, Training

SIZE, STEPS, LR = 6, 7, 0.05
DRAW = np.random.default_rng(3)
MATRICES = DRAW.standard_normal((STEPS, 5, SIZE))
TARGETS = DRAW.standard_normal((STEPS, 5))
W_IN, H, CONTROL, MINE = (DRAW.standard_normal(SIZE) for _ in range(4))


def loss_and_gradient(w: Any, step: int, kind: Any = np.asarray) -> tuple[Any, Any]:
    """Return the mean square of A w - b and its gradient, for one w or many, in numpy or torch."""
    matrix, target = kind(MATRICES[step]), kind(TARGETS[step])
    off = w @ matrix.T - target
    return (off * off).sum(-1) / 10, off @ matrix / 5


def visit(
    settings: Any,
    w_in: Any = W_IN,
    received: Any = None,
    memory: Any = None,
    kind: Any = lambda values: np.asarray(values, np.float32),
    **training: Any,
) -> tuple[Any, VisitOutput, list[Any]]:
    """A visit as a device performs it, in float32."""
    vectors, kept = ({n: kind(v) for n, v in (named or {}).items()} for named in (received, memory))
    start = kind(w_in)
    objective = objectives.begin(settings, start, vectors, kept)
    assert objective is not None
    how = Training(**({"lr": LR} | training))
    optimiser, w, losses = descent.begin(how), kind(w_in) + 0, []
    for step in range(STEPS):
        loss, direction = objective.direction(w, partial(loss_and_gradient, step=step, kind=kind))
        losses.append(loss)
        optimiser.move(w, direction)
    return w, objective.end(w, STEPS, how.lr), losses


def reading(pull: Any, momentum: float = 0.0, decay: float = 0.0) -> tuple[np.ndarray, list[float]]:
    """w <- w - lr v, v <- momentum v + (pull(g, w) + decay w), in float64."""
    w, v, losses = W_IN.copy(), np.zeros(SIZE), []
    for step in range(STEPS):
        loss, g = loss_and_gradient(w, step)
        losses.append(float(loss))
        v = momentum * v + pull(g, w, step) + decay * w
        w = w - LR * v
    return w, losses


def sam_pull(g: np.ndarray, w: np.ndarray, step: int) -> Any:
    return loss_and_gradient(w + 0.3 * g / np.sqrt(np.sum(g**2)), step)[1]


PULLS: list[tuple[Any, dict[str, Any], Any]] = [
    (Sgd(), {}, lambda g, w, step: g),
    (Prox(mu=0.7), {}, lambda g, w, step: g + 0.7 * (w - W_IN)),
    (Dyn(a=0.4), {"memory": {"h": H}}, lambda g, w, step: g - H + 0.4 * (w - W_IN)),
    (Dyn(a=0.4), {}, lambda g, w, step: g + 0.4 * (w - W_IN)),
    (
        Scaffold(),
        {"received": {"control": CONTROL}, "memory": {"control": MINE}},
        lambda g, w, step: g - MINE + CONTROL,
    ),
    (Scaffold(), {"received": {"control": CONTROL}}, lambda g, w, step: g + CONTROL),
    (Sam(rho=0.3), {}, sam_pull),
]


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.8, 0.0), (0.0, 0.1), (0.8, 0.1)])
@pytest.mark.parametrize(("settings", "given", "pull"), PULLS)
def test_each_objective_matches_its_pseudo_code(
    settings: Any, given: dict[str, Any], pull: Any, momentum: float, decay: float
) -> None:
    w, _, losses = visit(settings, **given, momentum=momentum, weight_decay=decay)
    expected, plain = reading(pull, momentum, decay)
    assert w.dtype == np.float32
    np.testing.assert_allclose(w, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses, plain, rtol=1e-4)  # every objective returns the plain loss at w


def test_objectives_and_their_parameters_all_differ() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [(settings, given) for settings, given, _ in PULLS]
    cases += [(Prox(mu=0.71), {}), (Dyn(a=0.41), {"memory": {"h": H}}), (Sam(rho=0.31), {})]
    cases += [(Scaffold(), {"received": {"control": 2 * CONTROL}, "memory": {"control": MINE}})]
    results = {visit(settings, **given)[0].tobytes() for settings, given in cases}
    assert len(results) == len(cases)


def test_zero_weights_equal_plain_sgd_bit_for_bit() -> None:
    how = {"momentum": 0.8, "weight_decay": 0.1}
    plain = visit(Sgd(), **how)[0].tobytes()
    zero = np.zeros(SIZE)
    assert visit(Prox(mu=0.0), **how)[0].tobytes() == plain
    assert visit(Scaffold(), received={"control": zero}, **how)[0].tobytes() == plain
    assert visit(Scaffold(), received={"control": CONTROL}, memory={"control": CONTROL}, **how)[0] == pytest.approx(
        visit(Sgd(), **how)[0], abs=1e-5
    )
    assert visit(Dyn(a=0.4), **how)[0].tobytes() == visit(Prox(mu=0.4), **how)[0].tobytes()


def test_dyn_memory_accumulates_the_drift() -> None:
    w, left, _ = visit(Dyn(a=0.4), memory={"h": H})
    assert left.vectors == {}
    np.testing.assert_allclose(left.memory["h"], H - 0.4 * (w - W_IN), atol=1e-6)
    w, left, _ = visit(Dyn(a=0.4))
    np.testing.assert_allclose(left.memory["h"], -0.4 * (w - W_IN), atol=1e-6)


def test_scaffold_keeps_its_control_and_sends_the_delta() -> None:
    w, left, _ = visit(Scaffold(), received={"control": CONTROL}, memory={"control": MINE})
    new = MINE - CONTROL + (W_IN - w) / (STEPS * LR)
    np.testing.assert_allclose(left.memory["control"], new, atol=1e-5)
    np.testing.assert_allclose(left.vectors["control_delta"], new - MINE, atol=1e-5)
    # With plain steps (w_in - w_out) / (steps lr) is the mean direction, so c_k' is the mean plain gradient.
    at, total = W_IN.copy(), np.zeros(SIZE)
    for step in range(STEPS):
        gradient = loss_and_gradient(at, step)[1]
        total += gradient
        at = at - LR * (gradient - MINE + CONTROL)
    np.testing.assert_allclose(left.memory["control"], total / STEPS, atol=1e-5)


@pytest.mark.parametrize("memory", [{}, {"control": MINE}])
def test_scaffold_without_steps_changes_nothing(memory: dict[str, Any]) -> None:
    objective = objectives.begin(Scaffold(), W_IN, {"control": CONTROL}, memory)
    assert objective is not None
    left = objective.end(W_IN, 0, LR)
    np.testing.assert_array_equal(left.memory["control"], memory.get("control", np.zeros(SIZE)))
    np.testing.assert_array_equal(left.vectors["control_delta"], np.zeros(SIZE))


def test_sam_evaluates_twice_and_stays_put_on_zero_gradient() -> None:
    asked: list[np.ndarray] = []

    def flat(at: np.ndarray) -> tuple[float, np.ndarray]:
        asked.append(at.copy())
        return 1.5, np.zeros(3, np.float32)

    objective = objectives.begin(Sam(rho=2.0), np.ones(3, np.float32), {}, {})
    assert objective is not None
    loss, direction = objective.direction(np.ones(3, np.float32), flat)
    assert loss == 1.5
    assert direction.tolist() == [0, 0, 0]
    assert [at.tolist() for at in asked] == [[1, 1, 1], [1, 1, 1]]

    def sloping(at: np.ndarray) -> tuple[float, np.ndarray]:
        asked.append(at)
        return 0.0, np.array([3, 4], np.float32)

    objective.direction(np.zeros(2, np.float32), sloping)
    np.testing.assert_allclose(asked[-1], [1.2, 1.6], rtol=1e-6)


@pytest.mark.parametrize(("settings", "given", "pull"), PULLS)
def test_batched_models_in_torch_train_like_each_alone(settings: Any, given: dict[str, Any], pull: Any) -> None:
    twice = {
        role: {name: np.stack([value, 2 * value]) for name, value in named.items()} for role, named in given.items()
    }
    doubled = {role: {name: 2 * value for name, value in named.items()} for role, named in given.items()}
    many, left, losses = visit(
        settings,
        np.stack([W_IN, -W_IN]),
        kind=lambda values: torch.tensor(np.asarray(values), dtype=torch.float32),
        **twice,
    )
    for number, alone in enumerate([visit(settings, **given), visit(settings, -W_IN, **doubled)]):
        np.testing.assert_allclose(many[number].numpy(), alone[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose([float(loss[number]) for loss in losses], alone[2], rtol=1e-4)
        for name, vector in (*alone[1].memory.items(), *alone[1].vectors.items()):
            both = {**left.memory, **left.vectors}
            np.testing.assert_allclose(both[name][number].numpy(), vector, rtol=1e-4, atol=1e-4)


def test_elmy_has_no_single_descent() -> None:
    assert objectives.begin(Elmy(), W_IN, {}, {}) is None
