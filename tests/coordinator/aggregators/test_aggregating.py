"""Tests of all aggregators: plan order, empty rounds, and kept state; and tests of the means."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.aggregators.aggregating import Contribution, aggregate, first_state
from sojourn.parts import (
    Adagrad,
    Adam,
    Aggregator,
    AvgM,
    Dyn,
    DynServer,
    Fusion,
    FusionMean,
    Ida,
    Objective,
    OwnAggregator,
    Scaffold,
    ScaffoldServer,
    Sgd,
    UniformMean,
    WeightedMean,
    Yogi,
)
from tests.coordinator.aggregators.merges import about, brought, drawn, plain_mean

BOTH: list[Aggregator] = [WeightedMean(), UniformMean()]
PREVIOUS = np.array([9.0, 9.0], np.float32)
OWN = OwnAggregator(part="tests.coordinator.aggregators.test_custom_aggregator:Halfway", settings={"share": 0.5})
ALL: list[tuple[Aggregator, Objective]] = [
    (WeightedMean(), Sgd()),
    (UniformMean(), Sgd()),
    (AvgM(), Sgd()),
    (Adagrad(), Sgd()),
    (Adam(), Sgd()),
    (Yogi(), Sgd()),
    (Ida(), Sgd()),
    (DynServer(), Dyn()),
    (ScaffoldServer(), Scaffold()),
    (FusionMean(), Fusion()),
    (OWN, Sgd()),
]
WITH_STATE = {
    AvgM: {"momentum"},
    Adagrad: {"momentum", "root"},
    Adam: {"momentum", "root"},
    Yogi: {"momentum", "root"},
    DynServer: {"drift"},
    ScaffoldServer: {"control"},
}


def test_all_job_file_aggregators_are_covered() -> None:
    assert {type(settings) for settings, _ in ALL} == set(get_args(Aggregator))


def test_weighted_mean_matches_hand_calculation() -> None:
    vector, state = aggregate(WeightedMean(), PREVIOUS, brought(([1, 2], 1), ([3, 6], 3)), {}, about())
    assert vector.tolist() == [2.5, 5.0]
    assert vector.dtype == np.float32
    assert state == {}


def test_uniform_mean_matches_hand_calculation() -> None:
    vector, state = aggregate(UniformMean(), PREVIOUS, brought(([1, 2], 1), ([3, 6], 3)), {}, about())
    assert vector.tolist() == [2.0, 4.0]
    assert vector.dtype == np.float32
    assert state == {}


def test_weighted_and_uniform_differ_only_if_weights_differ() -> None:
    for weight, alike in [(2, False), (1, True)]:
        contributions = brought(([1, 2], 1), ([3, 6], weight))
        weighted, uniform = (aggregate(each, PREVIOUS, contributions, {}, about())[0] for each in BOTH)
        assert np.array_equal(weighted, uniform) == alike


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_missing_contributions_keep_model_and_state(settings: Aggregator, objective: Objective) -> None:
    state = {
        name: np.array([0.5, -0.5], np.float32) for name in ("momentum", "root", "drift", "control", "count", "other")
    }
    model, after = aggregate(settings, PREVIOUS, [], state, about(objective))
    assert model is PREVIOUS
    assert after is state


@pytest.mark.parametrize("settings", [each for each, _ in ALL if getattr(each, "weighting", "") == "samples"])
def test_zero_samples_keep_model_and_state(settings: Aggregator) -> None:
    state = {"momentum": np.ones(2, np.float32), "root": np.ones(2, np.float32)}
    model, after = aggregate(settings, PREVIOUS, brought(([1, 2], 0), ([3, 6], 0)), state, about())
    assert model is PREVIOUS
    assert after is state


def test_zero_samples_keep_weighted_mean_model() -> None:
    assert aggregate(WeightedMean(), PREVIOUS, brought(([1, 2], 0), ([3, 6], 0)), {}, about())[0] is PREVIOUS


@pytest.mark.parametrize("settings", [WeightedMean(), AvgM(), Adagrad(), Adam(), Yogi(), Ida()])
def test_tour_without_samples_has_no_influence(settings: Aggregator) -> None:
    alone = aggregate(settings, PREVIOUS, brought(([1, 2], 4)), {}, about())
    crowd = aggregate(settings, PREVIOUS, brought(([np.inf, np.nan], 0), ([1, 2], 4)), {}, about())
    assert np.array_equal(alone[0], crowd[0])
    assert alone[1].keys() == crowd[1].keys()
    assert all(np.array_equal(alone[1][name], crowd[1][name]) for name in alone[1])


def test_uniform_mean_needs_no_samples() -> None:
    vector, _ = aggregate(UniformMean(), PREVIOUS, brought(([1, 2], 0), ([3, 6], 0)), {}, about())
    assert vector.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("form", [AvgM, Adagrad, Adam, Yogi, Ida, ScaffoldServer])
def test_sample_weighting_changes_result(form: Any) -> None:
    contributions = brought(([1, 2], 1), ([3, 7], 5), ([4, 4], 2))
    objective = Scaffold() if isinstance(form(), ScaffoldServer) else Sgd()
    models = {
        weighting: aggregate(form(weighting=weighting), PREVIOUS, contributions, {}, about(objective))[0].tolist()
        for weighting in ("samples", "uniform")
    }
    assert models["samples"] != models["uniform"]
    default = aggregate(form(), PREVIOUS, contributions, {}, about(objective))[0].tolist()
    assert default == models["uniform" if isinstance(form(), ScaffoldServer) else "samples"]


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_unknown_state_vectors_pass_through(settings: Aggregator, objective: Objective) -> None:
    other = np.ones(2, np.float32)
    merge = about(objective, control_delta=np.ones(2, np.float32))
    _, after = aggregate(settings, PREVIOUS, brought(([1, 2], 1)), {"other": other}, merge)
    assert after["other"] is other
    assert after.keys() - {"other", "count"} == WITH_STATE.get(type(settings), set())


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_state_is_returned_and_inputs_stay_unchanged(settings: Aggregator, objective: Objective) -> None:
    merge = about(objective, control_delta=np.full(7, 0.25, np.float32))
    previous, state = np.linspace(-1, 1, 7, dtype=np.float32), first_state(settings, 7)
    for number in range(3):
        contributions = drawn(f"round {number}", 4)
        for vector in (previous, *state.values(), *(each.vector for each in contributions)):
            vector.setflags(write=False)
        previous, state = aggregate(settings, previous, contributions, state, merge)
        assert previous.shape == (7,)
        assert {each.dtype for each in (previous, *state.values())} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("settings", "objective"), ALL)
def test_same_round_gives_identical_bits(settings: Aggregator, objective: Objective) -> None:
    size = 70_001  # more than two blocks, the last one shorter
    contributions = drawn("bits", 19, size)
    merge = about(objective, control_delta=contributions[3].vector)
    once, twice = (
        aggregate(settings, contributions[0].vector, contributions, first_state(settings, size), merge)
        for _ in range(2)
    )
    assert once[0].tobytes() == twice[0].tobytes()
    assert all(once[1][name].tobytes() == twice[1][name].tobytes() for name in once[1])


@pytest.mark.parametrize(("settings", "objective"), ALL[:-1])
def test_contribution_order_changes_at_most_last_bit(settings: Aggregator, objective: Objective) -> None:
    contributions = drawn("order", 19)
    merge = about(objective, control_delta=contributions[3].vector)
    start = np.zeros(7, np.float32)
    there, back = (aggregate(settings, start, each, {}, merge)[0] for each in (contributions, contributions[::-1]))
    np.testing.assert_allclose(there, back, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize(("settings", "objective"), [case for case in ALL if not isinstance(case[0], Ida)])
def test_long_vector_matches_its_short_slices(settings: Aggregator, objective: Objective) -> None:
    size = 70_001
    long = drawn("blocks", 11, size)
    state = dict.fromkeys(("momentum", "root", "drift", "control", "count"), np.full(size, 0.5, np.float32))
    whole, kept = aggregate(settings, long[0].vector, long, state, about(objective, control_delta=long[1].vector))
    for part in (slice(0, 5), slice(32_766, 32_771), slice(65_534, 65_539), slice(69_996, 70_001)):
        few = [Contribution(each.vector[part], each.weight) for each in long]
        merge = about(objective, control_delta=few[1].vector)
        piece, bits = aggregate(settings, few[0].vector, few, {name: v[part] for name, v in state.items()}, merge)
        assert np.array_equal(piece, whole[part])
        assert all(np.array_equal(bits[name], kept[name][part]) for name in bits)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(1, 10**6)), min_size=1, max_size=20))
def test_sums_use_plan_order_and_float64(pairs: list[tuple[float, int]]) -> None:
    total = float(sum(weight for _, weight in pairs))
    expected = pairs[0][0] * (pairs[0][1] / total)
    for value, weight in pairs[1:]:
        expected += value * (weight / total)
    one = np.zeros(1, np.float32)
    vector, _ = aggregate(WeightedMean(), one, brought(*(([value], weight) for value, weight in pairs)), {}, about())
    assert vector[0] == np.float32(expected)


@given(st.floats(-(2.0**99), 2.0**99, width=32), st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_mean_of_equal_models_is_that_model(value: float, weights: list[int]) -> None:
    one = np.zeros(1, np.float32)
    for settings in (*BOTH, Ida()):
        vector, _ = aggregate(settings, one, brought(*(([value], weight) for weight in weights)), {}, about())
        assert vector[0] == np.float32(value)


@pytest.mark.parametrize("scale", [1e-35, 1e-20, 1e18, 1e36])
@pytest.mark.parametrize(("settings", "objective"), ALL[:-1])
def test_huge_and_tiny_values_stay_finite(settings: Aggregator, objective: Objective, scale: float) -> None:
    contributions = drawn("scale", 5, scale=scale)
    zero, state = np.zeros(7, np.float32), first_state(settings, 7)
    merge = about(objective, control_delta=contributions[0].vector)
    model, state = aggregate(settings, zero, contributions, state, merge)
    model, state = aggregate(settings, model, contributions[::-1], state, merge)
    assert np.isfinite(model).all()
    assert all(np.isfinite(vector).all() for vector in state.values())
    assert np.count_nonzero(model) == 7


def test_first_state_has_only_vectors_sent_to_devices() -> None:
    for settings, _ in ALL:
        expected = {"control": [0.0, 0.0, 0.0]} if isinstance(settings, ScaffoldServer) else {}
        first = first_state(settings, 3)
        assert {name: vector.tolist() for name, vector in first.items()} == expected
        assert all(vector.dtype == np.float32 for vector in first.values())


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_means_match_plain_numpy(weighting: str) -> None:
    settings = WeightedMean() if weighting == "samples" else UniformMean()
    contributions = drawn("plain", 23)
    model, _ = aggregate(settings, np.zeros(7, np.float32), contributions, {}, about())
    np.testing.assert_allclose(model, plain_mean(contributions, weighting), rtol=6e-8)
