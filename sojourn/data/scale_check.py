"""Whether a device's values are on the scale of the job: 0 to 1 among 0 to 16 trains without a word, and badly."""

from __future__ import annotations

from math import isfinite, prod
from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.samples import Doubt
from sojourn.data.windows import Windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.protocol.spec import ValueRange

RATIO = 8
"""Ranges of which one is this many times as wide as the other are on different scales."""
_BLOCK = 1 << 20
"""Numbers that are looked at in one go."""
_USUAL = ((0.0, 1.0), (-1.0, 1.0), (0.0, 16.0), (0.0, 255.0), (0.0, 65535.0))
"""Scales that data usually has: what is within one, and fills half of it, is most likely on it."""


def range_of(x: NDArray[np.generic]) -> tuple[float, float] | None:
    """The least and the largest finite value, if there is one."""
    low, high = np.inf, -np.inf
    x = x.steps if isinstance(x, Windows) else x  # what overlaps is looked at once
    step = max(1, _BLOCK // max(1, prod(x.shape[1:])))
    for at in range(0, len(x) if x.dtype.kind in "buif" else 0, step):
        block = x[at : at + step]
        block = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        if block.size:
            low, high = min(low, float(block.min())), max(high, float(block.max()))
    return (low, high) if low <= high else None


def target_doubt(found: tuple[float, float], wanted: tuple[float, float], name: str) -> Doubt | None:
    """What is odd about a device's range of a quantity beside the job's own samples, if anything is.

    A device may well know a small part of the range only, so that is no doubt.
    """
    (low, high), (least, most) = found, wanted
    if not (isfinite(least) and isfinite(most) and least < most):
        return None
    if low <= most and high >= least and high - low <= RATIO * (most - least):
        return None
    here = f"{name[:40]!r} goes from {low:g} to {high:g}"
    return Doubt(
        f"a target is on another scale: in the job's samples it goes from {least:g} to {most:g}",
        here,
        "bring it to the job's unit with data.target_scale, or name the right columns with data.targets",
    )


def scale_doubt(found: tuple[float, float], wanted: ValueRange) -> Doubt | None:
    """What is odd about a device's range of values beside the job's, if anything is."""
    (low, high), (least, most) = found, (wanted.low, wanted.high)
    if not (isfinite(least) and isfinite(most) and least < most):
        return None
    whose = "the job demands values" if wanted.demanded else "the job's exemplars go"
    beside = f"{whose} from {least:g} to {most:g}"
    here = f'they go from {low:g} to {high:g}; data.scale = "{_usual(low, high)} to {_usual(least, most)}" may be it'
    remedy = "bring them to that scale with data.scale (--scale)"
    span, width = high - low, most - least
    slack = 1e-6 * width
    if wanted.demanded and (low < least - slack or high > most + slack):
        return Doubt(f"values are outside of the job's: {beside}", here, remedy)
    apart = low > most or high < least
    negative = least >= 0 and low < -width / 4
    if apart or negative or span > RATIO * width or 0 < span < width / RATIO:
        return Doubt(f"values are on another scale: {beside}", here, remedy)
    return None


def _usual(low: float, high: float) -> str:
    fits = ((a, b) for a, b in _USUAL if a <= low and high <= b and (high - low) * 2 > b - a)
    a, b = next(fits, (low, high))
    return f"{a:g}..{b:g}"
