"""A labelled data set in memory, and how what a file holds becomes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import DataError
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEST_SHARE = 0.2
"""What is cut off for testing where a source has no test part."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples as a graph takes them: uint8, float32 or int64 (tokens), channels first; labels are class numbers.

    users, domains: the natural user (writer) and the domain of each training sample, where they are known.
    """

    name: str
    x_train: NDArray[np.generic]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.generic]
    y_test: NDArray[np.int64]
    classes: tuple[str, ...]
    users: NDArray[np.int64] | None = None
    domains: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """What a source holds, as it holds it. Labels are names or numbers; there may be no test part."""

    source: str
    x: NDArray[np.generic]
    y: NDArray[np.generic]
    test: tuple[NDArray[np.generic], NDArray[np.generic]] | None = None
    classes: tuple[str, ...] = ()
    users: NDArray[np.generic] | None = None
    domains: NDArray[np.generic] | None = None


def in_order(name: str, found: Found, seed: int) -> DataSet:
    """The data set in what was found; `seed` decides which samples are for testing where the source does not say it."""
    x, y = _samples(found.x, found.y, found.source)
    users, domains = (_groups(what, found.source, len(y)) for what in (found.users, found.domains))
    if found.test is None:
        train, test = _cut(len(y), seed, found.source)
        x_test, y_test, x, y = x[test], y[test], x[train], y[train]
        users, domains = (what if what is None else what[train] for what in (users, domains))
    else:
        x_test, y_test = _samples(*found.test, f"{found.source} (test part)")
    if x.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"{found.source}: training samples have the shape {x.shape[1:]}, those for testing {x_test.shape[1:]}"
        )
    classes, numbers = _class_numbers(np.concatenate([y, y_test]), found)
    return DataSet(name, x, numbers[: len(y)], x_test, numbers[len(y) :], classes, users, domains)


def _samples(
    x: NDArray[np.generic], y: NDArray[np.generic], source: str
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{source}: x has the shape {x.shape} and y {y.shape}, not one label for each sample")
    if not len(y):
        raise DataError(f"{source}: there are no samples in it")
    if x.dtype.kind not in "biuf":
        raise DataError(f"{source}: x is of type {x.dtype}; samples are numbers")
    x = x if x.dtype in (np.uint8, np.int64) else x.astype(np.float32, copy=False)
    if x.dtype == np.float32 and (broken := int((~np.isfinite(x.reshape(len(x), -1)).all(axis=1)).sum())):
        raise DataError(f"{source}: {broken} of {len(x)} samples hold NaN or infinity; leave them out")
    return channels_first(x), y


def channels_first(x: NDArray[np.generic]) -> NDArray[np.generic]:
    """Images as (samples, channels, height, width); whatever is no image stays as it is."""
    if x.ndim == 3 and x.dtype != np.int64:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _cut(samples: int, seed: int, source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sample numbers for training and those for testing."""
    if samples < 2:
        raise DataError(f"{source}: one sample cannot be cut into a part for training and one for testing")
    order = generator(seed, "test").permutation(samples)
    tested = max(1, round(TEST_SHARE * samples))
    return np.sort(order[tested:]), np.sort(order[:tested])


def _class_numbers(labels: NDArray[np.generic], found: Found) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The class names, and every label as a class number.

    A number is a place in the class names, or its own name where there are none; text is a name.
    """
    distinct, which = np.unique(_whole(labels, found.source), return_inverse=True)
    named = distinct.dtype.kind == "U"
    names = [str(one) for one in distinct] if named else [_name_of(int(one), found) for one in distinct]
    classes = found.classes or tuple(names)
    number = {name: at for at, name in enumerate(classes)}
    if len(number) != len(classes):
        raise DataError(f"{found.source}: its class names are not all different")
    if unknown := [name for name in names if name not in number]:
        raise DataError(f"{found.source}: the label {unknown[0]!r} is none of its classes {', '.join(classes)}")
    return classes, np.array([number[name] for name in names], np.int64)[which]


def _name_of(label: int, found: Found) -> str:
    if not found.classes:
        return str(label)
    if not 0 <= label < len(found.classes):
        raise DataError(f"{found.source}: there is the label {label}, but only {len(found.classes)} class names")
    return found.classes[label]


def _groups(what: NDArray[np.generic] | None, source: str, samples: int) -> NDArray[np.int64] | None:
    """Users or domains as numbers: their own, or places in the sorted names."""
    if what is None:
        return None
    if what.shape != (samples,):
        raise DataError(f"{source}: {samples} samples have users or domains of the shape {what.shape}, not one each")
    whole = _whole(what, source)
    if whole.dtype.kind == "U":
        whole = np.unique(whole, return_inverse=True)[1]
    return whole.astype(np.int64)


def _whole(values: NDArray[np.generic], source: str) -> NDArray[np.generic]:
    """Text or whole numbers."""
    if values.dtype.kind == "S":
        return np.char.decode(values.astype(np.bytes_), "utf-8")
    if values.dtype.kind == "f" and np.array_equal(values, np.floor(values.astype(np.float64))):
        return values.astype(np.int64)
    if values.dtype.kind not in "biuU":
        raise DataError(f"{source}: labels, users and domains are names or whole numbers, not {values.dtype}")
    return values
