"""Values on another scale than the job's: told, and what is only a little different is not."""

from __future__ import annotations

from math import inf, nan

import pytest

from sojourn.data.scale_check import scale_doubt
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
