"""The small public labelled set, and the signature that a model's answers on it give.

Both the server and a device compute signatures here, so that both get the same one.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from sojourn.errors import InvalidBlob
from sojourn.model.scoring import ScoredSamples
from sojourn.protocol.spec import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.graphs import Graphs

BATCH = 64
"""Fixed, because a runtime may round differently for another batch size."""


class Exemplars(msgspec.Struct, frozen=True):
    """Labelled samples as they travel. `uint8` is the compact form of pixels; graphs take them as float32."""

    x: bytes
    shape: Shape
    dtype: Literal["uint8", "float32", "int64"]
    y: tuple[int, ...]

    @classmethod
    def of(cls, x: NDArray[np.generic], y: NDArray[np.integer]) -> Exemplars:
        """Pack these samples; x is uint8, float32 or int64."""
        form: Literal["uint8", "float32", "int64"]
        match x.dtype.name:
            case "uint8" | "float32" | "int64" as form:
                little = x.astype(x.dtype.newbyteorder("<"), copy=False)
                return cls(little.tobytes(), x.shape, form, tuple(int(label) for label in y))
            case other:
                raise ValueError(f"exemplars are uint8, float32 or int64, not {other}")

    def arrays(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """The samples as a graph takes them, and their class numbers."""
        x, y = self.packed()
        return self.unpacked(x), y

    def packed(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """The samples as compact as they are, and their class numbers."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if len(self.x) != prod(self.shape) * dtype.itemsize or self.shape[:1] != (len(self.y),):
            raise InvalidBlob(f"{len(self.x)} bytes and {len(self.y)} labels are not exemplars of shape {self.shape}")
        return np.frombuffer(self.x, dtype).reshape(self.shape), np.array(self.y, np.int64)

    def unpacked(self, x: NDArray[np.generic]) -> NDArray[np.generic]:
        """Some of the samples, as a graph takes them."""
        return x.astype(np.int64 if self.dtype == "int64" else np.float32)


class ViewedExemplars(Exemplars, frozen=True):
    """Exemplars whose samples stay where they are, in the blob that is read: a test set is large."""

    x: memoryview  # type: ignore[assignment]  # msgspec copies bytes, and makes a view of the blob of this


def signature(graphs: Graphs, vector: NDArray[np.float32], exemplars: Exemplars, classes: int) -> tuple[float, ...]:
    """VISIT's v_c: the mean of softmax(f(x))_c over the exemplars x of class c; 0 for a class without exemplars."""
    return signature_of(graphs, vector, ScoredSamples(exemplars, graphs), classes)


def signature_of(
    graphs: Graphs, vector: NDArray[np.float32], exemplars: ScoredSamples, classes: int
) -> tuple[float, ...]:
    """The same, of exemplars that were read before."""
    y = exemplars.y
    if y.min() < 0 or y.max() >= classes:
        raise InvalidBlob(f"exemplars have labels from {y.min()} to {y.max()}, the job has {classes} classes")
    own = np.concatenate(
        [
            _softmax(graphs.logits(vector, exemplars.taken(slice(at, at + BATCH))))[
                np.arange(len(y[at : at + BATCH])), y[at : at + BATCH]
            ]
            for at in range(0, len(y), BATCH)
        ]
    )
    sums = np.bincount(y, weights=own, minlength=classes)
    counts = np.bincount(y, minlength=classes)
    return tuple(float(value) for value in sums / np.maximum(counts, 1))


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
