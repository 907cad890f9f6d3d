"""The public exemplars, and the signature computed from a model's outputs on them.

Servers and devices share this code, so that they compute identical signatures.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sojourn.errors import InvalidBlob
from sojourn.model.metrics import softmax
from sojourn.model.scoring import ScoredSamples
from sojourn.model.strata import members
from sojourn.protocol.task import Shape, TaskSpec

if TYPE_CHECKING:
    from sojourn.model.graphs import Graphs

BATCH = 64
"""Fixed, because a runtime may round differently for other batch sizes."""


class Targets(msgspec.Struct, frozen=True):
    """The targets of samples without classes: concatenated, little-endian."""

    data: bytes
    shape: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=8)]
    dtype: Literal["float32", "int64"]

    def array(self) -> NDArray[np.generic]:
        """Return the targets, a row for each sample."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if len(self.data) != prod(self.shape) * dtype.itemsize or min(self.shape) < 0:
            raise InvalidBlob(f"{len(self.data)} bytes do not fit targets of shape {self.shape}")
        return np.frombuffer(self.data, dtype).reshape(self.shape).astype(self.dtype)


class Exemplars(msgspec.Struct, frozen=True):
    """Samples in their wire form, with classes or targets; `uint8` pixels become float32 in graphs.

    y: the class of each sample; without classes, its stratum.
    """

    x: bytes
    shape: Shape
    dtype: Literal["uint8", "float32", "int64"]
    y: tuple[int, ...]
    targets: Targets | None = None
    faulty: tuple[int, ...] | None = None
    """For the test set of a reconstruction: the indices of the samples that are known to be faulty."""

    @classmethod
    def of(
        cls, x: NDArray[np.generic], y: NDArray[np.integer], targets: NDArray[np.generic] | None = None
    ) -> Exemplars:
        """Pack these samples; x is uint8, float32 or int64."""
        form: Literal["uint8", "float32", "int64"]
        match x.dtype.name:
            case "uint8" | "float32" | "int64" as form:
                little = x.astype(x.dtype.newbyteorder("<"), copy=False)
                packed = None if targets is None else _packed(targets)
                return cls(little.tobytes(), x.shape, form, tuple(int(label) for label in y), packed)
            case other:
                raise ValueError(f"exemplars must be uint8, float32 or int64, not {other}")

    def expected(self) -> NDArray[np.generic]:
        """Return each sample's target, or its class if there are no targets."""
        found = self.targets.array() if self.targets else np.array(self.y, np.int64)
        if len(found) != len(self.y):
            raise InvalidBlob(f"{len(found)} targets for {len(self.y)} exemplars")
        return found

    def faulty_mask(self) -> NDArray[np.bool_] | None:
        """Return which samples are known to be faulty, or None if unknown."""
        if self.faulty is None:
            return None
        if not all(0 <= row < len(self.y) for row in self.faulty):
            raise InvalidBlob(f"an index of a faulty sample is not below {len(self.y)}")
        marks = np.zeros(len(self.y), np.bool_)
        marks[list(self.faulty)] = True
        return marks

    def arrays(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return the samples in the graph's type, and their class numbers."""
        x, y = self.packed()
        return self.unpacked(x), y

    def packed(self) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return the samples in their compact type, and their class numbers."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if len(self.x) != prod(self.shape) * dtype.itemsize or self.shape[:1] != (len(self.y),):
            raise InvalidBlob(
                f"{len(self.x)} bytes and {len(self.y)} labels do not fit exemplars of shape {self.shape}"
            )
        return np.frombuffer(self.x, dtype).reshape(self.shape), np.array(self.y, np.int64)

    def unpacked(self, x: NDArray[np.generic]) -> NDArray[np.generic]:
        """Convert some samples to the graph's type."""
        return x.astype(np.int64 if self.dtype == "int64" else np.float32)


class ViewedExemplars(Exemplars, frozen=True):
    """Exemplars whose samples are a view of the blob, without a copy, because a test set is large."""

    x: memoryview  # type: ignore[assignment]  # msgspec copies bytes, but decodes a memoryview without a copy


def signature(graphs: Graphs, vector: NDArray[np.float32], exemplars: Exemplars, classes: int) -> tuple[float, ...]:
    """VISIT's v_c: the mean of softmax(f(x))_c over the exemplars x of class c; 0 for a class without exemplars."""
    return signature_of(graphs, vector, ScoredSamples(exemplars, graphs), classes)


def signature_of(
    graphs: Graphs, vector: NDArray[np.float32], exemplars: ScoredSamples, classes: int
) -> tuple[float, ...]:
    """Compute the `signature` from exemplars that are already loaded."""
    y = exemplars.y
    if not len(y) or y.min() < 0 or y.max() >= classes:
        raise InvalidBlob(f"{len(y)} exemplars have labels outside the job's {classes} classes")
    if graphs.task:
        return _signature_by_strata(graphs, graphs.task, vector, exemplars)
    own = []
    for at in range(0, len(y), BATCH):
        likely = softmax(graphs.logits(vector, exemplars.inputs(slice(at, at + BATCH))))
        own.append(np.take_along_axis(likely, y[at : at + BATCH, np.newaxis], axis=1)[:, 0])
    sums = np.bincount(y, weights=np.concatenate(own), minlength=classes)
    counts = np.bincount(y, minlength=classes)
    return tuple(float(value) for value in sums / np.maximum(counts, 1))


def _signature_by_strata(
    graphs: Graphs, task: TaskSpec, vector: NDArray[np.float32], exemplars: ScoredSamples
) -> tuple[float, ...]:
    """v_s: the mean of exp(-loss / blind) over the exemplars of stratum s, which for cross-entropy is softmax(f(x))_s.

    Dividing by `blind`, the loss of an uninformed prediction, brings every task's values into 0 to 1. A loss that is
    not finite counts as infinite.
    """
    starts = range(0, len(exemplars.y), BATCH)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = np.concatenate([graphs.losses(vector, *exemplars.batch(slice(at, at + BATCH))) for at in starts])
        own = np.exp(-np.maximum(np.nan_to_num(losses, nan=np.inf), 0.0) / task.blind)
    if task.kind == "multilabel":
        within = members(task, exemplars.x, exemplars.compared)
    else:
        within = np.asarray(exemplars.y[:, np.newaxis] == np.arange(task.strata.count))
    sums = own @ within.astype(np.float64)
    return tuple(float(value) for value in sums / np.maximum(within.sum(axis=0), 1))


def _packed(targets: NDArray[np.generic]) -> Targets:
    form: Literal["float32", "int64"] = "int64" if targets.dtype.kind in "iu" else "float32"
    little = targets.astype(np.dtype(form).newbyteorder("<"))
    return Targets(little.tobytes(), targets.shape, form)
