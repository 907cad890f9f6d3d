"""Values on another scale than the job's: told, and what is only a little different is not."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from sojourn.data.scale_check import range_of, scale_doubt, target_doubt
from sojourn.data.windows import windows
from sojourn.protocol.spec import ValueRange

DIGITS = ValueRange(0, 16)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ((0, 1), DIGITS),
        ((0, 255), DIGITS),
        ((-8, 8), DIGITS),
        ((100, 110), DIGITS),
        ((0, 1), ValueRange(0, 255)),
        ((-1, 1), ValueRange(0, 1)),
        ((0, 65535), ValueRange(0, 255)),
    ],
)
def test_other_scales(found: tuple[float, float], wanted: ValueRange) -> None:
    doubt = scale_doubt(found, wanted)
    assert doubt is not None
    assert doubt.what.startswith("values are on another scale: the job's exemplars go from 0 to")
    assert f"they go from {found[0]:g} to {found[1]:g}" in doubt.detail
    assert "they" not in doubt.what


@pytest.mark.parametrize("found", [(0, 16), (0, 12), (2, 9), (0, 40), (-3, 16), (5, 5)])
def test_what_may_be_the_same_scale(found: tuple[float, float]) -> None:
    assert scale_doubt(found, DIGITS) is None


def test_the_likely_scales_are_named() -> None:
    doubt = scale_doubt((0.0, 0.97), ValueRange(0, 15))
    assert doubt is not None
    assert 'data.scale = "0..1 to 0..16" may be it' in doubt.detail


def test_a_demand_is_kept_to_the_letter() -> None:
    demand = ValueRange(0, 16, demanded=True)
    assert scale_doubt((0, 16), demand) is None
    assert scale_doubt((0, 17), demand) is not None
    assert scale_doubt((0, 1), demand) is not None


@pytest.mark.parametrize("wanted", [ValueRange(nan, 1), ValueRange(0, inf), ValueRange(3, 3), ValueRange(2, 1)])
def test_a_range_that_is_none_is_not_compared(wanted: ValueRange) -> None:
    assert scale_doubt((0, 1000), wanted) is None


@pytest.mark.parametrize(
    ("found", "odd"),
    [((0, 10), False), ((4, 5), False), ((7, 7), False), ((9, 40), False), ((11, 20), True), ((0, 100), True)],
)
def test_a_quantity_in_another_unit_is_doubted_and_a_small_part_of_it_is_not(
    found: tuple[float, float], odd: bool
) -> None:
    doubt = target_doubt(found, (0.0, 10.0), "load")
    assert (doubt is not None) == odd
    if doubt:
        assert doubt.what == "a target is on another scale: in the job's samples it goes from 0 to 10"
        assert "data.target_scale" in doubt.remedy


@pytest.mark.parametrize("wanted", [(float("nan"), 1.0), (1.0, 1.0), (2.0, 1.0), (float("-inf"), 1.0)])
def test_a_range_that_says_nothing_about_a_target(wanted: tuple[float, float]) -> None:
    assert target_doubt((5.0, 6.0), wanted, "load") is None


def test_the_range_of_windows_is_that_of_their_series() -> None:
    steps = np.array([[3.0], [np.nan], [-1.0], [5.0]])
    assert range_of(windows(steps, np.array([0, 2]), 1, (1,), np.float64)) == (-1, 5)
    assert range_of(np.array([np.nan])) is None
