"""A data set in memory, and how what a file holds becomes one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sojourn.data.doubts import doubts_of
from sojourn.data.labels import classes_of, distinct
from sojourn.data.samples import SampleForm, fit, natural_shape
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.samples import Content, Samples
    from sojourn.protocol.task import Kind, Window

TEST_SHARE = 0.2
"""What is cut off for testing where a source has no test part."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples as a graph takes them: uint8, float32 or int64 (tokens), channels first.

    y is what a sample is compared with, by the kind of task: class numbers of a classification; 0 or 1 for each label;
    quantities, of a forecast for each hour to come; the next tokens; of a reconstruction 0, or 1 where a test sample is
    known to be faulty. users, domains: the natural user (writer) and the domain of each training sample, where they are
    known. skipped: what was left out of the source, and why; odd: what looks odd about it, and what to do. names: the
    quantities of a target. window: how series were cut.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    classes: tuple[str, ...]
    users: NDArray[np.int64] | None = None
    domains: NDArray[np.int64] | None = None
    skipped: tuple[str, ...] = ()
    odd: tuple[str, ...] = ()
    kind: Kind = "classification"
    names: tuple[str, ...] = ()
    window: Window | None = None


def every_fifth(data: DataSet) -> DataSet:
    """The set with every fifth of its training samples for testing: a cut that does not depend on any seed."""
    tested = np.arange(len(data.y_train)) % 5 == 0
    users, domains = (None if groups is None else groups[~tested] for groups in (data.users, data.domains))
    return replace(
        data,
        x_train=data.x_train[~tested],
        y_train=data.y_train[~tested],
        x_test=data.x_train[tested],
        y_test=data.y_train[tested],
        users=users,
        domains=domains,
    )


@dataclass(frozen=True, eq=False)
class Found:
    """What a source holds, as it holds it; there may be no test part."""

    train: Content
    test: Content | None = None
    users: NDArray[np.generic] | None = None
    domains: NDArray[np.generic] | None = None


def in_order(name: str, found: Found, seed: int) -> DataSet:
    """The data set in what was found; `seed` decides which samples are for testing where the source does not say it."""
    samples, tested, classes = _fitted(found)
    x, y, source = _compact(samples.x), samples.y, found.train.source
    users, domains = (_groups(what, source, samples.kept) for what in (found.users, found.domains))
    odd = tuple(f"{doubt.what} ({doubt.detail}); to do: {doubt.remedy}" for doubt in doubts_of(found.train))
    if tested is None:
        train, test = _cut(len(y), seed, source)
        x_test, y_test, x, y = x[test], y[test], x[train], y[train]
        users, domains = (what if what is None else what[train] for what in (users, domains))
        return DataSet(name, x, y, x_test, y_test, classes, users, domains, samples.skipped, odd)
    skipped = (*samples.skipped, *(f"test part: {text}" for text in tested.skipped))
    return DataSet(name, x, y, _compact(tested.x), tested.y, classes, users, domains, skipped, odd)


def _fitted(found: Found) -> tuple[Samples, Samples | None, tuple[str, ...]]:
    """The samples of both parts by the rules that devices read by, and the classes."""
    train, test = found.train, found.test
    dtype: Literal["int64", "float32"] = "int64" if train.x.dtype == np.int64 else "float32"
    shape = natural_shape(train.x, dtype)
    if test is not None and (other := natural_shape(test.x, dtype)) != shape:
        raise DataError(f"{train.source}: training samples have the shape {shape}, those for testing {other}")
    form = SampleForm(InputSpec(shape, dtype), classes_of([train] if test is None else [train, test]))
    return fit(train, form), None if test is None else fit(test, form), form.classes


def _compact(x: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(x, None if x.dtype in (np.uint8, np.int64) else np.float32)


def _cut(samples: int, seed: int, source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sample numbers for training and those for testing."""
    if samples < 2:
        raise DataError(f"{source}: one sample cannot be cut into a part for training and one for testing")
    order = generator(seed, "test").permutation(samples)
    tested = max(1, round(TEST_SHARE * samples))
    return np.sort(order[tested:]), np.sort(order[:tested])


def _groups(what: NDArray[np.generic] | None, source: str, kept: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Users or domains of the samples as numbers: their own, or places in the sorted names."""
    if what is None:
        return None
    if what.shape != kept.shape:
        raise DataError(f"{source}: {len(kept)} samples have users or domains of the shape {what.shape}, not one each")
    labels, which = distinct(what, f"{source} (users or domains)")
    numbers = range(len(labels)) if isinstance(labels[0], str) else labels
    return np.array(numbers, np.int64)[which][kept]
