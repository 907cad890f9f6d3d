"""A data set in memory, and its construction from the contents of a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coordinator.jobs.settings import JobData
from coordinator.jobs.settings_tables import TaskSettings
from coordinator.jobs.task_data import task_form
from sojourn.data.checks import data_warnings
from sojourn.data.labels import classes_of, distinct
from sojourn.data.samples import Content, SampleForm, Samples, fit, natural_shape
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Kind, Window
from sojourn.randomness import generator

TEST_SHARE = 0.2
"""The share of samples used for testing if a source has no test part."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Samples in the graph's format: uint8, float32 or int64 (tokens), channels first.

    y: the targets, by kind of task: class indices; 0 or 1 for each label; quantities, of a forecast for each future
    step; the next tokens; for a reconstruction 0, or 1 for test samples known to be faulty. users, domains: the natural
    user (writer) and the domain of each training sample, if known. skipped: skipped parts of the source, with reasons.
    warnings: suspicious properties, with remedies. names: the quantities of a target. window: how series were cut.
    channels: the names of their columns, if known. columns: the names of the columns of a table.
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
    warnings: tuple[str, ...] = ()
    kind: Kind = "classification"
    names: tuple[str, ...] = ()
    window: Window | None = None
    channels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def every_fifth(data: DataSet) -> DataSet:
    """Return the set with every fifth of its training samples for testing; the cut does not depend on a seed."""
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
    """The raw contents of a source; the test part may be missing."""

    train: Content
    test: Content | None = None
    users: NDArray[np.generic] | None = None
    domains: NDArray[np.generic] | None = None


def in_order(
    name: str, found: Found, seed: int, task: TaskSettings | None = None, data: JobData | None = None
) -> DataSet:
    """Return a data set; `seed` selects the test samples if the source does not.

    task, data: the task and data settings of a job; without them, samples have classes.
    """
    settings = TaskSettings() if task is None else task
    form = _classes_form(found) if settings.plain else _task_form(found, settings, data or JobData())
    samples = fit(found.train, form)
    tested = None if found.test is None else fit(found.test, form, "test")
    x, y, source = _compact(samples.x), np.asarray(samples.y), found.train.source
    users, domains = (_groups(what, source, samples) for what in (found.users, found.domains))
    users = samples.machine if users is None and len(samples.machines) > 1 else users
    warnings = tuple(f"{it.what} ({it.detail}); remedy: {it.remedy}" for it in data_warnings(found.train))
    spec, columns = form.task or None, found.train.table.columns if found.train.table else ()
    whole = DataSet(
        name, x, y, x[:0], y[:0], form.classes, users, domains, samples.skipped, warnings, settings.kind,
        spec.names if spec else (), spec.window if spec else None,
        found.train.target_names or columns if settings.kind == "forecast" else (), columns,
    )  # fmt: skip
    if tested is None:
        return _with_test_part(
            whole,
            _split_windows(samples, settings, source) if settings.kind == "forecast" else _cut(len(y), seed, source),
        )
    skipped = (*samples.skipped, *(f"test part: {text}" for text in tested.skipped))
    return replace(whole, x_test=_compact(tested.x), y_test=np.asarray(tested.y), skipped=skipped)


def _with_test_part(whole: DataSet, parts: tuple[NDArray[np.int64], NDArray[np.int64]]) -> DataSet:
    """Return the set with some of its samples as a test part."""
    train, test = parts
    users, domains = (None if groups is None else groups[train] for groups in (whole.users, whole.domains))
    x, y = whole.x_train, whole.y_train
    return replace(
        whole, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test], users=users, domains=domains
    )


def _classes_form(found: Found) -> SampleForm:
    """Check the format of samples with classes."""
    train, test = found.train, found.test
    dtype: Literal["int64", "float32"] = "int64" if train.x.dtype == np.int64 else "float32"
    shape = natural_shape(train.x, dtype)
    if test is not None and (other := natural_shape(test.x, dtype)) != shape:
        raise DataError(f"{train.source}: training samples have the shape {shape}, test samples {other}")
    return SampleForm(InputSpec(shape, dtype), classes_of([train] if test is None else [train, test]))


def _task_form(found: Found, task: TaskSettings, data: JobData) -> SampleForm:
    """Check the format of samples for any other task, as for a job's own files."""
    return task_form(task, data, [found.train] if found.test is None else [found.train, found.test])


def _compact(x: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(x, None if x.dtype in (np.uint8, np.int64) else np.float32)


def _cut(samples: int, seed: int, source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sample numbers for training and those for testing."""
    if samples < 2:
        raise DataError(f"{source}: a single sample cannot be split into a training part and a test part")
    order = generator(seed, "test").permutation(samples)
    tested = max(1, round(TEST_SHARE * samples))
    return np.sort(order[tested:]), np.sort(order[:tested])


def _split_windows(samples: Samples, task: TaskSettings, source: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the windows for training and those for testing: the last of each series, without a common step."""
    machine = np.zeros(len(samples), np.int64) if samples.machine is None else samples.machine
    apart = -(-((task.steps or 1) + task.horizon) // task.stride) - 1
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    for each in np.unique(machine):
        mine = np.flatnonzero(machine == each)
        begins = len(mine) - max(1, round(TEST_SHARE * len(mine)))
        train.append(mine[: max(0, begins - apart)])
        test.append(mine[begins:])
    if not sum(map(len, train)):
        raise DataError(
            f"{source}: its series are too short for training windows and later test windows: lower task.steps, "
            "or provide an NPZ file with x_train and x_test"
        )
    return np.concatenate(train), np.concatenate(test)


def _groups(what: NDArray[np.generic] | None, source: str, samples: Samples) -> NDArray[np.int64] | None:
    """Return users or domains as numbers: integers as they are, names by sorted position; of series, by series."""
    if what is None:
        return None
    kept, machine = samples.kept, samples.machine
    by_series = machine is not None and what.shape == (len(samples.machines),)
    if what.shape != kept.shape and not by_series:
        raise DataError(f"{source}: {len(kept)} samples have users or domains of shape {what.shape}, not one each")
    labels, which = distinct(what, f"{source} (users or domains)")
    numbers = np.array(range(len(labels)) if isinstance(labels[0], str) else labels, np.int64)[which]
    return numbers[machine] if by_series and machine is not None else numbers[kept]
