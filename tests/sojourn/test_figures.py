"""Numbers as people read them."""

from __future__ import annotations

from math import nan

import pytest

from sojourn.figures import clock_of, number, percent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0368, "37 ms"),
        (1.0, "1.0 s"),
        (61.0, "1 min 01 s"),
        (3660.0, "1 h 01 min"),
        (90_000.0, "1 d 01 h"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert clock_of(seconds) == text


def test_what_is_not_known_is_a_dash() -> None:
    assert (percent(0.5), percent(nan), number(0.25), number(nan)) == ("50.0 %", "-", "0.2500", "-")
