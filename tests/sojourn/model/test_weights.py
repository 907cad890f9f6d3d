"""Weights capped at a maximum share."""

from __future__ import annotations

import pytest

from sojourn.model.vectors import cap_weights


def test_weights_within_their_share_stay_exact() -> None:
    uneven = [1.0, 7.0, 30.0, 30.0]
    assert cap_weights(uneven, 0.5) == uneven
    assert cap_weights([0.1, 0.2, 0.3], 0.25) == [0.1, 0.2, 0.3]  # three of them: there is nothing to bound


@pytest.mark.parametrize("most", [None, 1.0])
def test_weight_is_unlimited_without_a_bound(most) -> None:
    assert cap_weights([1e9, 1.0, 1.0, 1.0], most) == [1e9, 1.0, 1.0, 1.0]


def test_excessive_weight_is_capped_and_others_stay_exact() -> None:
    assert cap_weights([1e9, 10.0, 20.0, 30.0], 0.5) == [60.0, 10.0, 20.0, 30.0]
    assert cap_weights([10.0, 20.0, 2.0**50, 30.0], 0.5) == [10.0, 20.0, 60.0, 30.0]


def test_two_excessive_weights_are_capped_at_one_share_each() -> None:
    found = cap_weights([1e9, 1e8, *[10.0] * 6], 0.25)
    assert found == [30.0, 30.0, *[10.0] * 6]
    assert max(found) / sum(found) == 0.25


def test_zero_weights_do_not_count_toward_the_minimum_of_four() -> None:
    assert cap_weights([90.0, 5.0, 5.0, 0.0, 0.0], 0.5) == [90.0, 5.0, 5.0, 0.0, 0.0]
