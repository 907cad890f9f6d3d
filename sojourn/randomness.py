"""All randomness of a job, derived from its seed and names; used by every engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray


def derive(seed: int, *names: str | int) -> int:
    """Derive a 53-bit seed (exact in every language) from `seed` and all names."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 11


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a separate generator for one purpose."""
    return np.random.Generator(np.random.Philox(derive(seed, *names)))


def batches(seed: int, samples: int, size: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    """Yield the sample indices of each mini-batch of a visit; the last batch of an epoch may be smaller."""
    for epoch in range(epochs):
        order = generator(seed, "order", epoch).permutation(samples)
        for start in range(0, samples, size):
            yield order[start : start + size]


def noise(seed: int, step: int, batch: int, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
    """Return uniform numbers in [0, 1) for the noise inputs of the training graph at one step."""
    if not shapes:
        return []
    draw = generator(seed, "noise", step)
    return [draw.random((batch, *shape), dtype=np.float32) for shape in shapes]
