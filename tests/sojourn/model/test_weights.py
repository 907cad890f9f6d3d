"""Weights in which no model has more than its share."""

from __future__ import annotations

import pytest

from sojourn.model.weights import within_share


def test_weights_within_their_share_stay_exact() -> None:
    uneven = [1.0, 7.0, 30.0, 30.0]
    assert within_share(uneven, 0.5) == uneven
    assert within_share([0.1, 0.2, 0.3], 0.25) == [0.1, 0.2, 0.3]  # three of them: there is nothing to bound


@pytest.mark.parametrize("most", [None, 1.0])
def test_without_a_bound_one_may_have_all(most) -> None:
    assert within_share([1e9, 1.0, 1.0, 1.0], most) == [1e9, 1.0, 1.0, 1.0]


def test_one_that_claims_too_much_gets_its_share_and_the_others_stay_exact() -> None:
    assert within_share([1e9, 10.0, 20.0, 30.0], 0.5) == [60.0, 10.0, 20.0, 30.0]
    assert within_share([10.0, 20.0, 2.0**50, 30.0], 0.5) == [10.0, 20.0, 60.0, 30.0]


def test_two_that_claim_too_much_have_a_share_each() -> None:
    found = within_share([1e9, 1e8, *[10.0] * 6], 0.25)
    assert found == [30.0, 30.0, *[10.0] * 6]
    assert max(found) / sum(found) == 0.25


def test_who_has_nothing_does_not_count_among_the_four() -> None:
    assert within_share([90.0, 5.0, 5.0, 0.0, 0.0], 0.5) == [90.0, 5.0, 5.0, 0.0, 0.0]
