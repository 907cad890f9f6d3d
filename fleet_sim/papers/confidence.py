"""How sure the mean of a few runs is."""

from __future__ import annotations

from math import sqrt
from statistics import stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 0.975 quantiles of Student's t for 1, 2, ... degrees of freedom; beyond them the normal one."""


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean; NaN of a single value."""
    free = len(values) - 1
    if free < 1:
        return float("nan")
    return (STUDENT[free - 1] if free <= len(STUDENT) else 1.96) * stdev(values) / sqrt(len(values))
