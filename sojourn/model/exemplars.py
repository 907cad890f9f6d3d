"""The small public set, and the signature that a model's answers on it give.

Both the server and a device compute signatures here, so that both get the same one.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np

from sojourn.errors import InvalidBlob
from sojourn.model.scoring import ScoredSamples
from sojourn.model.strata import members
from sojourn.protocol.spec import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.graphs import Graphs
    from sojourn.protocol.task import TaskSpec

BATCH = 64
"""Fixed, because a runtime may round differently for another batch size."""


class Targets(msgspec.Struct, frozen=True):
    """What samples are compared with where that is no class: one target after another, little-endian."""

    data: bytes
    shape: Annotated[tuple[int, ...], msgspec.Meta(min_length=1, max_length=8)]
    dtype: Literal["float32", "int64"]

    def array(self) -> NDArray[np.generic]:
        """The targets, a row for each sample."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        if len(self.data) != prod(self.shape) * dtype.itemsize or min(self.shape) < 0:
            raise InvalidBlob(f"{len(self.data)} bytes are no targets of shape {self.shape}")
        return np.frombuffer(self.data, dtype).reshape(self.shape).astype(self.dtype)


class Exemplars(msgspec.Struct, frozen=True):
    """Samples as they travel, with classes or targets. `uint8` is the compact form of pixels, float32 in graphs.

    y: the class of each sample; without classes, its stratum.
    """

    x: bytes
    shape: Shape
    dtype: Literal["uint8", "float32", "int64"]
    y: tuple[int, ...]
    targets: Targets | msgspec.UnsetType = msgspec.UNSET
    faulty: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of a test set for a reconstruction: the numbers of those samples that are known to be faulty."""

    @classmethod
    def of(
        cls, x: NDArray[np.generic], y: NDArray[np.integer], targets: NDArray[np.generic] | None = None
    ) -> Exemplars:
        """Pack these samples; x is uint8, float32 or int64."""
        form: Literal["uint8", "float32", "int64"]
        match x.dtype.name:
            case "uint8" | "float32" | "int64" as form:
                little = x.astype(x.dtype.newbyteorder("<"), copy=False)
                packed = msgspec.UNSET if targets is None else _packed(targets)
                return cls(little.tobytes(), x.shape, form, tuple(int(label) for label in y), packed)
            case other:
                raise ValueError(f"exemplars are uint8, float32 or int64, not {other}")

    def compared(self) -> NDArray[np.generic]:
        """What each sample is compared with: its target, or else its class."""
        found = self.targets.array() if self.targets else np.array(self.y, np.int64)
        if len(found) != len(self.y):
            raise InvalidBlob(f"there are {len(found)} targets for {len(self.y)} exemplars")
        return found

    def marked(self) -> NDArray[np.bool_] | None:
        """Which samples are known to be faulty; None where nobody said it."""
        if self.faulty is msgspec.UNSET:
            return None
        if not all(0 <= row < len(self.y) for row in self.faulty):
            raise InvalidBlob(f"of {len(self.y)} samples others than these are said to be faulty")
        marks = np.zeros(len(self.y), np.bool_)
        marks[list(self.faulty)] = True
        return marks

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
    if not len(y) or y.min() < 0 or y.max() >= classes:
        raise InvalidBlob(f"{len(y)} exemplars have labels that are none of the job's {classes} classes")
    if graphs.task:
        return _signature_by_strata(graphs, graphs.task, vector, exemplars)
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


def _signature_by_strata(
    graphs: Graphs, task: TaskSpec, vector: NDArray[np.float32], exemplars: ScoredSamples
) -> tuple[float, ...]:
    """v_s: the mean of exp(-loss / blind) over the exemplars of stratum s, which for cross-entropy is softmax(f(x))_s.

    A loss is held against that of an answer that knows nothing, so that every task's are from 0 to 1. One that is not
    finite counts as infinite.
    """
    starts = range(0, len(exemplars.y), BATCH)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = np.concatenate([graphs.losses(vector, *exemplars.batch(slice(at, at + BATCH))) for at in starts])
        own = np.exp(-np.maximum(np.nan_to_num(losses, nan=np.inf), 0.0) / task.blind)
    within = members(task, exemplars.x, exemplars.compared) if task.kind == "multilabel" else _hot(exemplars.y, task)
    sums = own @ within.astype(np.float64)
    return tuple(float(value) for value in sums / np.maximum(within.sum(axis=0), 1))


def _hot(y: NDArray[np.int64], task: TaskSpec) -> NDArray[np.bool_]:
    return np.asarray(y[:, np.newaxis] == np.arange(task.strata.count))


def _packed(targets: NDArray[np.generic]) -> Targets:
    form: Literal["float32", "int64"] = "int64" if targets.dtype.kind in "iu" else "float32"
    little = targets.astype(np.dtype(form).newbyteorder("<"))
    return Targets(little.tobytes(), targets.shape, form)


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares
