"""Made-up batches on which a compiled kit is compared with torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from sojourn.randomness import generator, noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from coordinator.compiling.learning import Learning
    from sojourn.protocol.spec import InputSpec

# Small enough to be an index into anything, for a model that takes whole numbers but has no embedding.
SMALLEST_VOCABULARY = 2


@dataclass(frozen=True)
class Batch:
    """One batch as the training graph takes it."""

    x: NDArray[np.generic]
    y: NDArray[np.generic]
    noise: list[NDArray[np.float32]]
    beside: tuple[NDArray[np.float32], ...] = ()
    """Further models that the loss looks at."""


@dataclass(frozen=True)
class ProbeSamples:
    """Draws batches that look like a job's input."""

    spec: InputSpec
    learning: Learning
    noise: tuple[tuple[int, ...], ...]
    vocabulary: int
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    def batch(self, size: int, seed: int, *, coarse: bool = False) -> Batch:
        """A batch of `size`; `coarse` rounds its values, so that maxima tie as they do in real images."""
        draw = generator(seed, "samples", size)
        shape = (size, *self.spec.shape)
        x: NDArray[np.generic]
        if self.spec.dtype == "int64":
            x = draw.integers(0, self.vocabulary, shape, dtype=np.int64)
        else:
            normal = draw.standard_normal(shape, dtype=np.float32)
            x = (np.round(normal) if coarse else normal) * self.std + self.mean
        return Batch(x, self._targets(draw, size), noise(seed, 0, size, self.noise))

    def _targets(self, draw: np.random.Generator, size: int) -> NDArray[np.generic]:
        task = self.learning.task
        if task.target is None:
            return np.zeros(size, np.int64)
        shape = (size, *task.target.shape)
        if task.target.dtype == "int64":
            return draw.integers(0, task.output[-1], shape, dtype=np.int64)
        if task.kind == "multilabel":
            return draw.integers(0, 2, shape).astype(np.float32)
        normal = draw.standard_normal(shape, dtype=np.float32)
        return np.asarray(self.learning.answers(torch.from_numpy(normal)).numpy(), np.float32)


def like(
    spec: InputSpec,
    module: nn.Module,
    learning: Learning,
    noise_shapes: tuple[tuple[int, ...], ...],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> ProbeSamples:
    """Samples whose normalised values are standard normal, or that every embedding of `module` knows."""
    sizes = [layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    sizes += [learning.task.output[-1]] if learning.task.kind == "tokens" else []
    axes = (-1, 1, 1) if len(spec.shape) == 3 else (-1,)
    return ProbeSamples(
        spec,
        learning,
        noise_shapes,
        min(sizes, default=SMALLEST_VOCABULARY),
        np.array([0.0] if mean is None else mean, dtype=np.float32).reshape(axes),
        np.array([1.0] if std is None else std, dtype=np.float32).reshape(axes),
    )
