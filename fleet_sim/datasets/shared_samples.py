"""Samples that devices share: for fleets of more devices than a data set has samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

AT_ONCE = 8_000_000
"""Devices x samples x classes that are drawn together, so that a million devices need little room."""


def draw_shared(
    labels: NDArray[np.int64], devices: int, samples: int, alpha: float | None, draw: np.random.Generator
) -> list[NDArray[np.int64]]:
    """So many samples for each device, drawn from the whole set with replacement; the numbers of each rise.

    alpha: every device draws by a mix of classes of its own, from Dir(alpha); 0 gives it one class, None the mix of the
    whole set.
    """
    drawn = np.empty((devices, samples), np.int64)
    order = np.argsort(labels, kind="stable")
    counts = np.unique(labels, return_counts=True)[1]
    step = max(1, AT_ONCE // (samples * len(counts)))
    for first in range(0, devices, step):
        part = drawn[first : first + step]
        part[...] = order[_places(counts, part.shape, alpha, draw)]
    drawn.sort(axis=1)
    return list(drawn)


def _places(
    counts: NDArray[np.int64], shape: tuple[int, int], alpha: float | None, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Places in the samples sorted by class, a row for each device: a class by its mix, then any sample of that."""
    if alpha is None:
        return draw.integers(0, int(counts.sum()), shape)
    devices = shape[0]
    if alpha == 0:
        classes = np.broadcast_to(draw.integers(0, len(counts), (devices, 1)), shape)
    else:
        mixes = np.cumsum(draw.dirichlet(np.full(len(counts), alpha), devices), axis=1)
        asked = draw.random(shape)
        classes = (asked[:, :, None] >= mixes[:, None, :-1]).sum(axis=2)
    begins = np.cumsum(counts) - counts
    within = (draw.random(shape) * counts[classes]).astype(np.int64)
    return begins[classes] + within
