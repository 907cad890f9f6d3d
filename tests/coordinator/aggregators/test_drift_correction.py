"""Tests of FedDyn's and SCAFFOLD's server: computed by hand, with devices in numpy, and their invariants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.aggregators.aggregating import Contribution, aggregate, first_state
from sojourn.errors import JobError
from sojourn.parts import (
    Dyn,
    DynServer,
    OwnObjective,
    Prox,
    Scaffold,
    ScaffoldServer,
    Sgd,
    UniformMean,
    WeightedMean,
)
from sojourn.randomness import generator
from tests.coordinator.aggregators.merges import about, brought, drawn, plain_mean

START = np.linspace(-2, 2, 7, dtype=np.float32)
DEVICES, ROUNDS, LR, STEPS = 8, 12, 0.1, 3
TARGETS = generator(5, "targets").standard_normal((DEVICES, 7))


def tours_of(number: int) -> list[list[int]]:
    """Return the devices of this round's tours: never all of them, and not always one per tour."""
    order = generator(5, "tours", number).permutation(DEVICES).tolist()
    return [order[:1], order[1:3], order[3:6]] if number % 2 else [[each] for each in order[:3]]


def float32(numbers: Any) -> np.ndarray:
    return np.asarray(numbers, np.float32)


def test_dyn_matches_hand_calculation() -> None:
    # N = 4, a = 0.5: h = 1 - 0.5 / 4 ((3 - 1) + (6 - 1)) = 0.125; w = 4.5 - 0.125 / 0.5. Samples have no influence.
    merge = about(Dyn(a=0.5), devices=4)
    models = brought(([3], 1), ([6], 100))
    model, state = aggregate(DynServer(), float32([1]), models, {"drift": float32([1])}, merge)
    assert state["drift"].tolist() == [0.125]
    assert model.tolist() == [4.25]


@pytest.mark.parametrize("a", [0.01, 0.1, 1.0, 30.0])
def test_first_full_dyn_round_moves_twice_the_mean(a: float) -> None:
    contributions = drawn("all", DEVICES)
    model, state = aggregate(DynServer(), START, contributions, {}, about(Dyn(a=a), devices=DEVICES))
    mean = plain_mean(contributions, "uniform")
    np.testing.assert_allclose(model, 2 * mean - START, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(state["drift"], -a * (mean - START), rtol=1e-6)


def test_dyn_depends_on_objective_a_and_device_count() -> None:
    contributions = drawn("knobs", 3)
    state = {"drift": np.ones(7, np.float32)}

    def ran(a: float, devices: int) -> np.ndarray:
        return aggregate(DynServer(), START, contributions, state, about(Dyn(a=a), devices=devices))[0]

    assert np.abs(ran(0.1, 8) - ran(0.2, 8)).min() > 1e-3
    assert np.abs(ran(0.1, 8) - ran(0.1, 9)).min() > 1e-4


@pytest.mark.parametrize("a", [0.1, 1.0])
def test_dyn_drift_is_mean_of_device_drifts(a: float) -> None:
    """Run devices that minimise |w - target|^2 / 2 by some steps, in tours of one and of several, never all devices."""
    w, state = START, dict[str, Any]()
    own = np.zeros((DEVICES, 7))
    plain_w, plain_h = START.astype(np.float64), np.zeros(7)
    for number in range(ROUNDS):
        results = []
        for tour in tours_of(number):
            current = w.astype(np.float64)
            for k in tour:
                received = current.copy()
                for _ in range(STEPS):
                    current = current - LR * ((current - TARGETS[k]) - own[k] + a * (current - received))
                own[k] -= a * (current - received)
            results.append(current)
        plain_h = plain_h - a / DEVICES * sum(each - plain_w for each in results)
        plain_w = np.mean(results, axis=0) - plain_h / a
        contributions = [Contribution(float32(each), 1.0 + at) for at, each in enumerate(results)]
        w, state = aggregate(DynServer(), w, contributions, state, about(Dyn(a=a), devices=DEVICES))
        np.testing.assert_allclose(w, plain_w, atol=1e-5)
        np.testing.assert_allclose(state["drift"], own.mean(axis=0), atol=2e-6)
    assert np.abs(state["drift"]).max() > 1e-3


def test_scaffold_matches_hand_calculation() -> None:
    # c = 1 + 6 / 4; w = 1 + 0.5 (5 - 1), with the mean of 4 and 6 independent of their samples.
    merge = about(Scaffold(), devices=4, control_delta=float32([6]))
    settings, models = ScaffoldServer(lr=0.5), brought(([4], 1), ([6], 100))
    model, state = aggregate(settings, float32([1]), models, {"control": float32([1])}, merge)
    assert state["control"].tolist() == [2.5]
    assert model.tolist() == [3.0]


def test_scaffold_control_is_mean_of_device_controls() -> None:
    w, state = START, first_state(ScaffoldServer(), 7)
    own = np.zeros((DEVICES, 7))
    plain_w, plain_c = START.astype(np.float64), np.zeros(7)
    for number in range(ROUNDS):
        results, total, control = [], np.zeros(7), state["control"].astype(np.float64)
        for tour in tours_of(number):
            current = w.astype(np.float64)
            for k in tour:
                received = current.copy()
                for _ in range(STEPS):
                    current = current - LR * ((current - TARGETS[k]) - own[k] + control)
                newer = own[k] - control + (received - current) / (STEPS * LR)
                total += newer - own[k]
                own[k] = newer
            results.append(current)
        plain_c, plain_w = plain_c + total / DEVICES, plain_w + 0.8 * (np.mean(results, axis=0) - plain_w)
        contributions = [Contribution(float32(each), 1.0 + at) for at, each in enumerate(results)]
        merge = about(Scaffold(), devices=DEVICES, control_delta=float32(total))
        w, state = aggregate(ScaffoldServer(lr=0.8), w, contributions, state, merge)
        np.testing.assert_allclose(w, plain_w, atol=1e-5)
        np.testing.assert_allclose(state["control"], plain_c, atol=1e-5)
        np.testing.assert_allclose(state["control"], own.mean(axis=0), atol=2e-6)
    assert np.abs(state["control"]).max() > 1e-3


@pytest.mark.parametrize(("weighting", "mean"), [("samples", WeightedMean()), ("uniform", UniformMean())])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_scaffold_at_lr_1_equals_mean_bit_for_bit(weighting: Any, mean: Any, scale: float) -> None:
    contributions = drawn("first", 5, scale=scale)
    merge = about(Scaffold(), control_delta=np.ones(7, np.float32))
    model, _ = aggregate(ScaffoldServer(weighting=weighting), START, contributions, {}, merge)
    assert model.tobytes() == aggregate(mean, START, contributions, {}, about())[0].tobytes()
    slower, _ = aggregate(ScaffoldServer(lr=0.9, weighting=weighting), START, contributions, {}, merge)
    assert not np.array_equal(slower, model)


def test_returned_control_counts_even_without_a_model() -> None:
    merge = about(Scaffold(), devices=2, control_delta=np.ones(7, np.float32))
    for contributions, settings in [
        ([], ScaffoldServer()),
        (brought((START + 1, 0)), ScaffoldServer(weighting="samples")),
    ]:
        model, state = aggregate(settings, START, contributions, first_state(settings, 7), merge)
        assert model is START
        assert state["control"].tolist() == [0.5] * 7


def test_control_stays_if_devices_return_none() -> None:
    control = np.ones(7, np.float32)
    model, state = aggregate(ScaffoldServer(), START, drawn("some", 2), {"control": control}, about(Scaffold()))
    assert state["control"] is control
    assert not np.array_equal(model, START)


def test_control_update_depends_on_device_count() -> None:
    few, many = (
        aggregate(ScaffoldServer(), START, [], {}, about(Scaffold(), devices=devices, control_delta=START))[1]
        for devices in (4, 8)
    )
    assert np.array_equal(few["control"], 2 * many["control"])


@pytest.mark.parametrize("objective", [Sgd(), Prox(), Scaffold(), OwnObjective(part="a.b:C")])
def test_dyn_needs_its_objective(objective: Any) -> None:
    with pytest.raises(JobError, match='aggregator "dyn" needs objective "dyn", not "'):
        aggregate(DynServer(), START, drawn("some", 2), {}, about(objective))


@pytest.mark.parametrize("objective", [Sgd(), Prox(), Dyn()])
def test_scaffold_needs_its_objective(objective: Any) -> None:
    with pytest.raises(JobError, match='aggregator "scaffold" needs objective "scaffold", not "'):
        aggregate(ScaffoldServer(), START, drawn("some", 2), {}, about(objective))


def test_scaffold_accepts_custom_objective() -> None:
    merge = about(OwnObjective(part="a.b:C"), devices=2, control_delta=np.ones(7, np.float32))
    assert aggregate(ScaffoldServer(), START, drawn("some", 2), {}, merge)[1]["control"].tolist() == [0.5] * 7
