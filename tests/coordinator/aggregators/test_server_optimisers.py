"""Tests of FedAvgM, FedAdagrad, FedAdam and FedYogi: plain implementations, limits, and all settings."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.aggregators.aggregating import aggregate
from sojourn.parts import Adagrad, Adam, AvgM, UniformMean, WeightedMean, Yogi
from tests.coordinator.aggregators.merges import about, brought, drawn, plain_mean

START = np.linspace(-2, 2, 7, dtype=np.float32)
ROUNDS = [drawn(f"round {number}", 3 + number) for number in range(6)]
OPTIMISERS = [
    AvgM(momentum=0.6, lr=0.7),
    AvgM(momentum=0.6, lr=0.7, weighting="uniform"),
    Adagrad(lr=0.3, beta1=0.2, tau=0.05),
    Adam(lr=0.3, beta1=0.8, beta2=0.7, tau=0.05),
    Adam(lr=0.3, beta1=0.8, beta2=0.7, tau=0.05, weighting="uniform"),
    Yogi(lr=0.3, beta1=0.8, beta2=0.7, tau=0.05),
]


def after(settings: Any, rounds: list[Any] = ROUNDS) -> list[np.ndarray]:
    """Return the model after each round."""
    models, state = [START], dict[str, Any]()
    for contributions in rounds:
        model, state = aggregate(settings, models[-1], contributions, state, about())
        models.append(model)
    return models[1:]


def plainly(settings: Any) -> list[np.ndarray]:
    """Return the same from the papers' formulas in float64, without rounding between rounds."""
    w, models = START.astype(np.float64), []
    m, v = np.zeros(7), np.full(7, getattr(settings, "tau", 0.0) ** 2)
    for contributions in ROUNDS:
        delta = plain_mean(contributions, settings.weighting) - w
        if isinstance(settings, AvgM):
            v = settings.momentum * v + delta
            w = w + settings.lr * v
        else:
            m = settings.beta1 * m + (1 - settings.beta1) * delta
            if isinstance(settings, Adagrad):
                v = v + delta**2
            elif isinstance(settings, Adam):
                v = settings.beta2 * v + (1 - settings.beta2) * delta**2
            else:
                v = v - (1 - settings.beta2) * delta**2 * np.sign(v - delta**2)
            w = w + settings.lr * m / (np.sqrt(v) + settings.tau)
        models.append(w)
    return models


@pytest.mark.parametrize("settings", OPTIMISERS)
def test_six_rounds_follow_the_formulas(settings: Any) -> None:
    assert np.array_equal(after(settings)[0], plainly(settings)[0].astype(np.float32))  # no state is rounded yet
    for model, expected in zip(after(settings), plainly(settings), strict=True):
        np.testing.assert_allclose(model, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "knob", "value"),
    [
        (settings, knob, value)
        for settings in OPTIMISERS
        for knob, value in [("lr", 0.4), ("momentum", 0.3), ("beta1", 0.5), ("beta2", 0.3), ("tau", 0.5)]
        if hasattr(settings, knob)
    ],
)
def test_every_parameter_changes_result(settings: Any, knob: str, value: float) -> None:
    turned = msgspec.structs.replace(settings, **{knob: value})
    assert np.abs(after(settings)[-1] - after(turned)[-1]).min() > 1e-5


def test_avgm_matches_hand_calculation() -> None:
    one = np.array([1.0], np.float32)
    first, state = aggregate(AvgM(momentum=0.5, lr=2.0), one, brought(([4], 3)), {}, about())
    assert (first.tolist(), state["momentum"].tolist()) == ([7.0], [3.0])
    second, state = aggregate(AvgM(momentum=0.5, lr=2.0), first, brought(([8], 3)), state, about())
    assert (second.tolist(), state["momentum"].tolist()) == ([12.0], [2.5])


@pytest.mark.parametrize(("form", "root"), [(Adagrad, 5.0), (Adam, 3.0), (Yogi, 4.0)])
def test_adaptive_optimisers_match_hand_calculation(form: Any, root: float) -> None:
    # d = 4 from w = 1. Adagrad: 9 + 16. Adam: 7/16 of 16 and 9/16 of 32/9. Yogi: 12 + 1/4 of 16, as v < d^2.
    before = {Adagrad: 3.0, Adam: np.sqrt(32 / 9), Yogi: np.sqrt(12)}[form]
    knobs = {Adagrad: {}, Adam: {"beta2": 9 / 16}, Yogi: {"beta2": 3 / 4}}[form]
    state = {"momentum": np.array([2.0], np.float32), "root": np.array([before], np.float32)}
    settings = form(lr=2.0, beta1=0.5, tau=0.5, **knobs)
    model, state = aggregate(settings, np.array([1.0], np.float32), brought(([5], 1)), state, about())
    assert state["momentum"].tolist() == [3.0]
    assert state["root"][0] == pytest.approx(root, rel=1e-7)
    assert model[0] == pytest.approx(1 + 2 * 3 / (root + 0.5), rel=1e-7)


def test_yogi_root_stays_if_squares_are_equal() -> None:
    state = {"root": np.array([4.0], np.float32)}
    _, state = aggregate(Yogi(beta2=0.5), np.array([1.0], np.float32), brought(([5], 1)), state, about())
    assert state["root"].tolist() == [4.0]


@pytest.mark.parametrize(("weighting", "mean"), [("samples", WeightedMean()), ("uniform", UniformMean())])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_avgm_without_momentum_at_lr_1_equals_fedavg(weighting: Any, mean: Any, scale: float) -> None:
    contributions = drawn("exact", 9, scale=scale)
    expected = aggregate(mean, START, contributions, {}, about())[0]
    settings = AvgM(momentum=0.0, lr=1.0, weighting=weighting)
    state = {"momentum": np.ones(7, np.float32)}
    assert aggregate(settings, START, contributions, state, about())[0].tobytes() == expected.tobytes()
    with_momentum = msgspec.structs.replace(settings, momentum=0.9)
    assert aggregate(with_momentum, START, contributions, {}, about())[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("tau", [1e1, 1e2, 1e3, 1e5])
def test_adam_without_betas_approaches_fedavg_for_large_tau(tau: float) -> None:
    d = plain_mean(ROUNDS[0]) - START
    model, _ = aggregate(Adam(lr=tau, beta1=0.0, beta2=0.0, tau=tau), START, ROUNDS[0], {}, about())
    relative = np.abs((model - START.astype(np.float64)) / d - 1)
    assert relative.max() <= np.abs(d).max() / tau + 1e-6  # float32 has 24 bits


@pytest.mark.parametrize("form", [Adagrad, Yogi])
def test_adagrad_and_yogi_start_with_v_of_tau_squared(form: Any) -> None:
    d = plain_mean(ROUNDS[0]) - START
    model, _ = aggregate(form(lr=1e5, beta1=0.0, tau=1e5), START, ROUNDS[0], {}, about())
    np.testing.assert_allclose(model, START + d / 2, rtol=1e-5)


@pytest.mark.parametrize("settings", OPTIMISERS)
def test_empty_round_does_not_change_later_rounds(settings: Any) -> None:
    with_gap = after(settings, [ROUNDS[0], [], ROUNDS[1]])
    without = after(settings, ROUNDS[:2])
    assert np.array_equal(with_gap[1], without[0])
    assert np.array_equal(with_gap[2], without[1])


def test_restart_drops_opposed_momentum() -> None:
    there, back = brought(([4.0, 0.0], 1)), brought(([3.0, 0.0], 1))
    start, settings = np.zeros(2, np.float32), AvgM(momentum=0.5, weighting="uniform", restart=True)
    far, state = aggregate(settings, start, there, {}, about())
    near, _ = aggregate(settings, far, back, state, about())
    assert near.tolist() == [3, 0]  # the mean itself
    on, _ = aggregate(msgspec.structs.replace(settings, restart=False), far, back, state, about())
    assert on.tolist() == [5, 0]
    further, _ = aggregate(settings, far, brought(([6.0, 0.0], 1)), state, about())
    assert further.tolist() == [8, 0]  # it continues along the momentum


def test_restart_each_drops_opposed_momentum_per_parameter() -> None:
    start, settings = np.zeros(3, np.float32), AvgM(momentum=0.5, weighting="uniform", restart="each")
    far, state = aggregate(settings, start, brought(([4.0, 4.0, 0.0], 1)), {}, about())
    there, kept = aggregate(settings, far, brought(([3.0, 5.0, 2.0], 1)), state, about())
    assert there.tolist() == [3, 7, 2]  # the mean itself; in the direction of the mean; without momentum yet
    assert kept["momentum"].tolist() == [-1, 3, 2]


@pytest.mark.parametrize(("against", "momentum"), [(0.0, 0.0), (0.6, 0.0), (0.61, 0.0), (0.8, 1.0), (1.0, 1.0)])
def test_momentum_ends_if_mean_and_enough_models_oppose_it(against, momentum) -> None:
    """Three of five tours point back from 2, and so does their mean, 1: three suffice for 0.6 and for 0.61, rounded
    down.
    """
    settings = AvgM(momentum=0.5, weighting="uniform", restart="each", against=against)
    far, state = aggregate(settings, np.zeros(1, np.float32), brought(([2.0], 1)), {}, about())
    back = brought(*(([value], 1) for value in (-1.0, 0.0, 1.0, 2.5, 2.5)))
    model, _ = aggregate(settings, far, back, state, about())
    assert model.tolist() == [1.0 + momentum]


def test_momentum_stays_if_mean_agrees_with_it() -> None:
    settings = AvgM(momentum=0.5, weighting="uniform", restart="each")
    far, state = aggregate(settings, np.zeros(1, np.float32), brought(([2.0], 1)), {}, about())
    split = brought(*(([value], 1) for value in (1.0, 1.0, 1.0, 1.0, 16.0)))
    model, _ = aggregate(settings, far, split, state, about())
    assert model.tolist() == [5.0]


def test_restart_each_prevents_momentum_oscillation() -> None:
    # Devices move the model halfway to 0. Plain momentum overshoots and returns, for many rounds.
    def left_after(rounds: int, restart: Any) -> float:
        w, state = np.array([1.0, -3.0], np.float32), dict[str, Any]()
        settings = AvgM(momentum=0.9, weighting="uniform", restart=restart)
        for _ in range(rounds):
            w, state = aggregate(settings, w, brought(((w / 2).tolist(), 1)), state, about())
        return float(np.abs(w).max())

    assert left_after(30, "each") < 0.001 * left_after(30, restart=False)
