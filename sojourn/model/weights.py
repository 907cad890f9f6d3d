"""How much each model weighs in a mean, where no single one may weigh too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOM = 2
"""A bound on shares holds where equal weights would be at most half of it: three models may well be 60, 20 and 20 %."""


def within_share(weights: Sequence[float], most: float | None) -> list[float]:
    """The weights, of which none is more than the share `most` of their sum; those that are not stay exact.

    With fewer than 2 / most weights over 0, or with None, all stay as they are.
    """
    largest = sorted((weight for weight in weights if weight > 0), reverse=True)
    if most is None or len(largest) * most < ROOM or largest[0] <= most * sum(largest):
        return list(weights)
    for cut in range(1, len(largest)):
        if cut * most >= 1:
            break
        # `cut` weights w, with w = most * (cut * w + the others)
        bound = most * sum(largest[cut:]) / (1 - cut * most)
        if largest[cut] <= bound:
            return [min(weight, bound) for weight in weights]
    return [min(weight, largest[-1]) for weight in weights]
