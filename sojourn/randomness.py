"""All randomness of a job, from its seed and the names of things. Every engine draws from here."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


def derive(seed: int, *names: str | int) -> int:
    """A 53-bit seed (every language can hold it) that depends on `seed` and on every name, and on nothing else."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 11


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A generator of its own for one purpose."""
    return np.random.Generator(np.random.Philox(derive(seed, *names)))


def batches(seed: int, samples: int, size: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    """The sample indices of each mini-batch of a visit, epoch after epoch; the last of an epoch may be short."""
    for epoch in range(epochs):
        order = generator(seed, "order", epoch).permutation(samples)
        for start in range(0, samples, size):
            yield order[start : start + size]


def noise(seed: int, step: int, batch: int, shapes: Sequence[tuple[int, ...]]) -> list[NDArray[np.float32]]:
    """Uniform numbers in [0, 1) for the noise inputs of the training graph at one step."""
    if not shapes:
        return []
    draw = generator(seed, "noise", step)
    return [draw.random((batch, *shape), dtype=np.float32) for shape in shapes]
