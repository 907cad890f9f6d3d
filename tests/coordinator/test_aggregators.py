"""Means of the tours' models: exact numbers, plan order, and what happens when there is nothing to learn from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.aggregators import Contribution, aggregate
from sojourn.parts import Aggregator, UniformMean, WeightedMean

BOTH: list[Aggregator] = [WeightedMean(), UniformMean()]
PREVIOUS = np.array([9.0, 9.0], np.float32)


def brought(*pairs: tuple[list[float], float]) -> list[Contribution]:
    return [Contribution(np.array(vector, np.float32), weight) for vector, weight in pairs]


def test_weighted_mean_by_hand() -> None:
    vector, state = aggregate(WeightedMean(), PREVIOUS, brought(([1, 2], 1), ([3, 6], 3)), {})
    assert vector.tolist() == [2.5, 5.0]
    assert vector.dtype == np.float32
    assert state == {}


def test_uniform_mean_by_hand() -> None:
    vector, state = aggregate(UniformMean(), PREVIOUS, brought(([1, 2], 1), ([3, 6], 3)), {})
    assert vector.tolist() == [2.0, 4.0]
    assert vector.dtype == np.float32
    assert state == {}


def test_weighted_differs_from_uniform_only_where_weights_differ() -> None:
    for weight, alike in [(2, False), (1, True)]:
        contributions = brought(([1, 2], 1), ([3, 6], weight))
        weighted, uniform = (aggregate(each, PREVIOUS, contributions, {})[0] for each in BOTH)
        assert np.array_equal(weighted, uniform) == alike


@pytest.mark.parametrize("settings", BOTH)
def test_no_contributions_leave_the_model_as_it_is(settings: Aggregator) -> None:
    assert aggregate(settings, PREVIOUS, [], {})[0] is PREVIOUS


def test_no_samples_at_all_leave_the_model_as_it_is() -> None:
    assert aggregate(WeightedMean(), PREVIOUS, brought(([1, 2], 0), ([3, 6], 0)), {})[0] is PREVIOUS


def test_a_tour_without_samples_has_no_say() -> None:
    vector, _ = aggregate(WeightedMean(), PREVIOUS, brought(([1, 2], 4), ([np.inf, np.nan], 0)), {})
    assert vector.tolist() == [1.0, 2.0]


def test_uniform_asks_for_no_samples() -> None:
    vector, _ = aggregate(UniformMean(), PREVIOUS, brought(([1, 2], 0), ([3, 6], 0)), {})
    assert vector.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("settings", BOTH)
def test_state_passes_through(settings: Aggregator) -> None:
    state = {"momentum": np.ones(2, np.float32)}
    assert aggregate(settings, PREVIOUS, brought(([1, 2], 1)), state)[1] is state


@given(st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(1, 10**6)), min_size=1, max_size=20))
def test_sums_run_in_plan_order_in_float64(pairs: list[tuple[float, int]]) -> None:
    total = float(sum(weight for _, weight in pairs))
    expected = pairs[0][0] * (pairs[0][1] / total)
    for value, weight in pairs[1:]:
        expected += value * (weight / total)
    vector, _ = aggregate(WeightedMean(), PREVIOUS, brought(*(([value], weight) for value, weight in pairs)), {})
    assert vector[0] == np.float32(expected)


@given(st.floats(-(2.0**99), 2.0**99, width=32), st.lists(st.integers(1, 10**6), min_size=1, max_size=9))
def test_the_mean_of_equals_is_the_same_model(value: float, weights: list[int]) -> None:
    for settings in BOTH:
        vector, _ = aggregate(settings, PREVIOUS, brought(*(([value], weight) for weight in weights)), {})
        assert vector[0] == np.float32(value)
