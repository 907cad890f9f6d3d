"""Formatting of numbers."""

from __future__ import annotations

from math import nan

import pytest

from sojourn.text import clock_of, number, percent


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
def test_durations_are_formatted(seconds: float, text: str) -> None:
    assert clock_of(seconds) == text


def test_unknown_values_are_shown_as_a_dash() -> None:
    assert (percent(0.5), percent(nan), number(0.25), number(nan)) == ("50.0 %", "-", "0.2500", "-")
