"""Tests of IDA: computed by hand, against a plain implementation, and its limits."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregators.aggregating import Contribution, aggregate
from coordinator.aggregators.server_updates import distances
from sojourn.parts import Ida, UniformMean
from tests.coordinator.aggregators.merges import about, brought, drawn, plain_mean

ZERO = np.zeros(7, np.float32)


def plainly(contributions: list[Contribution], settings: Ida) -> np.ndarray:
    mean = plain_mean(contributions, settings.weighting)
    report = np.array([1 / (settings.epsilon + np.sqrt(((each.vector - mean) ** 2).sum())) for each in contributions])
    merged: np.ndarray = sum(
        share * each.vector.astype(np.float64) for share, each in zip(report / report.sum(), contributions, strict=True)
    )
    return merged


def test_ida_matches_hand_calculation() -> None:
    # The uniform mean is (3, 4): distances 5, 5 and 6, so with epsilon 1 the weights are 1/6, 1/6 and 1/7.
    contributions = brought(([0, 0], 9), ([0, 8], 1), ([9, 4], 1))
    assert distances([each.vector for each in contributions], np.array([3.0, 4.0])) == [5.0, 5.0, 6.0]
    model, _ = aggregate(Ida(epsilon=1.0, weighting="uniform"), ZERO[:2], contributions, {}, about())
    shares = np.array([1 / 6, 1 / 6, 1 / 7]) / (1 / 6 + 1 / 6 + 1 / 7)
    assert model.tolist() == pytest.approx([9 * shares[2], 8 * shares[1] + 4 * shares[2]], rel=1e-7)


def test_ida_matches_numpy_for_long_models() -> None:
    contributions, settings = drawn("long", 5, 70_001), Ida()
    model, _ = aggregate(settings, np.zeros(70_001, np.float32), contributions, {}, about())
    np.testing.assert_allclose(model, plainly(contributions, settings), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("settings", [Ida(), Ida(epsilon=0.5), Ida(epsilon=0.5, weighting="uniform")])
def test_ida_matches_numpy(settings: Ida) -> None:
    for tours in (1, 2, 5, 20):
        contributions = drawn("plain", tours)
        model, state = aggregate(settings, ZERO, contributions, {}, about())
        np.testing.assert_allclose(model, plainly(contributions, settings), rtol=1e-6, atol=1e-7)
        assert state == {}


def test_epsilon_matters_and_huge_one_gives_uniform_mean() -> None:
    contributions = drawn("epsilon", 5)
    near, far = (aggregate(Ida(epsilon=each), ZERO, contributions, {}, about())[0] for each in (1e-6, 10.0))
    assert np.abs(near - far).min() > 1e-4
    huge, _ = aggregate(Ida(epsilon=1e9), ZERO, contributions, {}, about())
    uniform, _ = aggregate(UniformMean(), ZERO, contributions, {}, about())
    np.testing.assert_allclose(huge, uniform, rtol=1e-6)


def test_outlier_model_has_little_weight() -> None:
    crowd = [([1.0, 1.0 + number / 100], 1.0) for number in range(9)]
    model, _ = aggregate(Ida(), ZERO[:2], brought(*crowd, ([1001.0, 1.0], 1.0)), {}, about())
    assert 1 < model[0] < 20  # the mean has 101


def test_last_bit_differences_give_exact_distances() -> None:
    ulp = 2.0**-23
    far = distances([np.full(100_000, 1 + at * ulp, np.float32) for at in range(3)], np.full(100_000, 1 + ulp / 4))
    assert far == pytest.approx([ulp * gap * np.sqrt(100_000) for gap in (0.25, 0.75, 1.75)], rel=1e-12)
