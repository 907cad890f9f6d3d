"""How often each class came out, and how far two such mixes are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter


def total_variation(first: Counter[int], second: Counter[int]) -> float:
    """The total variation distance of two mixes of classes: 0 if they are the same or one is empty, 1 at most."""
    ours, theirs = first.total(), second.total()
    if not ours or not theirs:
        return 0.0
    apart = sum(abs(first[each] / ours - second[each] / theirs) for each in first.keys() | second.keys()) / 2
    return min(apart, 1.0)  # sums of shares may be a little over it
