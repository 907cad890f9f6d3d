"""Warnings about values on another scale than the job's."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from sojourn.data.checks import scale_warning, target_scale_warning, value_range
from sojourn.data.series import windows
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
def test_values_on_another_scale_are_reported(found: tuple[float, float], wanted: ValueRange) -> None:
    warning = scale_warning(found, wanted)
    assert warning is not None
    assert warning.what.startswith("values are on another scale: the job's exemplars range from 0 to")
    assert f"they range from {found[0]:g} to {found[1]:g}" in warning.detail
    assert "they" not in warning.what


@pytest.mark.parametrize("found", [(0, 16), (0, 12), (2, 9), (0, 40), (-3, 16), (5, 5)])
def test_similar_scale_is_accepted(found: tuple[float, float]) -> None:
    assert scale_warning(found, DIGITS) is None


def test_likely_scales_are_suggested() -> None:
    warning = scale_warning((0.0, 0.97), ValueRange(0, 15))
    assert warning is not None
    assert 'data.scale = "0..1 to 0..16" may fit' in warning.detail


def test_demanded_range_is_enforced_exactly() -> None:
    demand = ValueRange(0, 16, demanded=True)
    assert scale_warning((0, 16), demand) is None
    assert scale_warning((0, 17), demand) is not None
    assert scale_warning((0, 1), demand) is not None


@pytest.mark.parametrize("wanted", [ValueRange(nan, 1), ValueRange(0, inf), ValueRange(3, 3), ValueRange(2, 1)])
def test_invalid_range_is_not_compared(wanted: ValueRange) -> None:
    assert scale_warning((0, 1000), wanted) is None


@pytest.mark.parametrize(
    ("found", "odd"),
    [((0, 10), False), ((4, 5), False), ((7, 7), False), ((9, 40), False), ((11, 20), True), ((0, 100), True)],
)
def test_target_in_another_unit_is_reported_but_subrange_is_not(found: tuple[float, float], odd: bool) -> None:
    warning = target_scale_warning(found, (0.0, 10.0), "load")
    assert (warning is not None) == odd
    if warning:
        assert warning.what == "a target is on another scale: in the job's samples it ranges from 0 to 10"
        assert "data.target_scale" in warning.remedy


@pytest.mark.parametrize("wanted", [(float("nan"), 1.0), (1.0, 1.0), (2.0, 1.0), (float("-inf"), 1.0)])
def test_uninformative_target_range_is_ignored(wanted: tuple[float, float]) -> None:
    assert target_scale_warning((5.0, 6.0), wanted, "load") is None


def test_range_of_windows_equals_range_of_their_series() -> None:
    steps = np.array([[3.0], [np.nan], [-1.0], [5.0]])
    assert value_range(windows(steps, np.array([0, 2]), 1, (1,), np.float64)) == (-1, 5)
    assert value_range(np.array([np.nan])) is None
