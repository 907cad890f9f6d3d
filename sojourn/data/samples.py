"""From what a file holds to samples of a job: labels by name, shapes in the graph's order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from sojourn.data.source import DataSettings, Form
    from sojourn.protocol.spec import InputSpec

NAMED = 10
"""How many skipped things are named before the rest is only counted."""
_BLOCK = 1024


@dataclass(frozen=True)
class Content:
    """What a file or folder holds. `labels` are its distinct labels, `which` says which of them each sample has."""

    x: NDArray[np.generic]
    labels: tuple[str | int, ...]
    which: NDArray[np.int64]
    names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Samples:
    """What a device trains on: x as compact as it was, y as class numbers of the job; and what was left out."""

    x: NDArray[np.generic]
    y: NDArray[np.int64]
    skipped: tuple[str, ...]

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """These samples as the graph takes them."""
        return np.ascontiguousarray(self.x[index], dtype=dtype), self.y[index]


def of_job(content: Content, settings: DataSettings, form: Form) -> Samples:
    """The samples of the job's classes, in the graph's shape, without rows that hold NaN or infinity."""
    source = settings.path
    names = named(content.labels, settings.class_names or content.names, form.classes, source)
    number = {name: at for at, name in enumerate(form.classes)}
    y = np.array([number.get(name, -1) for name in names], dtype=np.int64)[content.which]
    skipped = list(content.skipped)
    listed = y >= 0
    if not listed.all():
        absent = shorten(name for name in names if name not in number)
        skipped.append(f"{np.count_nonzero(~listed)} samples of classes that the job does not list: {absent}")
    if not listed.any():
        raise _nothing(source, form, skipped)
    x = shaped(_numeric(content.x, form.input, source), form.input.shape, source)
    finite = _finite(x)
    if not finite[listed].all():
        skipped.append(f"{np.count_nonzero(~finite[listed])} samples with NaN or infinite values")
    keep = listed & finite
    if not keep.any():
        raise _nothing(source, form, skipped)
    return Samples(x if keep.all() else x[keep], y[keep], tuple(skipped))


def named(labels: Sequence[str | int], names: Sequence[str], classes: Sequence[str], source: str) -> list[str]:
    """The name of each label. An integer means what `names` says, or is its own name: never a place in the job."""
    numbers = [label for label in labels if isinstance(label, int)]
    wrong = next((label for label in numbers if names and not 0 <= label < len(names)), None)
    if wrong is not None:
        raise DataError(f"{source} has the label {wrong}, but only {len(names)} class names are given")
    if numbers and not names and not any(name.isdecimal() for name in classes):
        raise DataError(
            f"{source} has integer labels such as {numbers[0]}, and the job's classes are {shorten(classes)}: say what "
            "the integers mean with `class_names` in the data settings, or with an array `classes` in the NPZ file"
        )
    return [label if isinstance(label, str) else names[label] if names else str(label) for label in labels]


def shaped(x: NDArray[np.generic], shape: tuple[int, ...], source: str) -> NDArray[np.generic]:
    """Samples in the graph's shape, where there is only one way to read them."""
    found = x.shape[1:]
    if found == shape:
        return x
    ours, theirs = ([size for size in sizes if size != 1] for sizes in (found, shape))
    flat = min(len(ours), len(theirs)) <= 1 and max(len(ours), len(theirs)) <= 2
    if ours == theirs or (flat and prod(ours) == prod(theirs)):
        return x.reshape(len(x), *shape)
    if len(found) == len(shape) == 3 and (found[2], found[0], found[1]) == shape:
        return np.moveaxis(x, 3, 1)
    raise DataError(f"{source} has samples of shape {found}, the model expects {shape}")


def shorten(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    every = [repr(name[:80]) for name in names]
    more = len(every) - NAMED
    return ", ".join(every[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _nothing(source: str, form: Form, skipped: Sequence[str]) -> DataError:
    reasons = f" ({'; '.join(skipped)})" if skipped else ""
    return DataError(f"{source} holds no sample of the job's classes {shorten(form.classes)}{reasons}")


def _numeric(x: NDArray[np.generic], wanted: InputSpec, source: str) -> NDArray[np.generic]:
    if x.dtype.kind not in "buif" or (wanted.dtype == "int64" and x.dtype.kind == "f"):
        raise DataError(f"{source} has samples of type {x.dtype}, the model expects {wanted.dtype}")
    if x.dtype.kind == "f" and x.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            return x.astype(np.float32)
    return x


def _finite(x: NDArray[np.generic]) -> NDArray[np.bool_]:
    finite = np.ones(len(x), dtype=np.bool_)
    if x.dtype.kind == "f":
        # Block by block: a mask of a whole data set would be a quarter of its size.
        for start in range(0, len(x), _BLOCK):
            block = x[start : start + _BLOCK]
            finite[start : start + _BLOCK] = np.isfinite(block).all(axis=tuple(range(1, block.ndim)))
    return finite
