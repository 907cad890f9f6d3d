"""The public side of a job's data: the test set, exemplars cut from it, class names, and normalisation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from math import prod
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.jobs.settings import DIGITS, JobData, JobSettings
from coordinator.jobs.task_data import cut, packed, stored, task_data, task_from_settings
from sojourn.data.checks import data_warnings, scale_warning, value_range
from sojourn.data.column_names import table_of
from sojourn.data.labels import classes_of
from sojourn.data.samples import Content, SampleForm, Samples, content_of, fit, natural_shape
from sojourn.data.source import Purpose, read_content
from sojourn.errors import DataError
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.limits import MAX_NUMBER
from sojourn.protocol.spec import InputSpec, TableSpec, ValueRange
from sojourn.protocol.task import TaskSpec
from sojourn.randomness import generator


@dataclass(frozen=True)
class PublicData:
    """The public side of a job's data; `skipped` lists the samples of its files that were skipped."""

    input: InputSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    exemplars: Exemplars | None
    test: Exemplars | None
    skipped: tuple[str, ...] = ()
    values: ValueRange | None = None
    """The range of values that devices' data should have."""
    odd: tuple[str, ...] = ()
    """Warnings about the files, each with a fix."""
    task: TaskSpec | None = None
    """The task, unless it is a plain classification."""
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and standard deviation of the exemplars' targets, by channel."""
    table: TableSpec | None = None
    """The columns of a sample by name, if it is a row of a table."""

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of a model's output for one sample."""
        return self.task.output if self.task else (len(self.classes),)


def public_data(job: JobSettings) -> PublicData:
    """Read the files of the job; exemplars come from their own file, or are cut from the test set and not tested on."""
    data, task = job.data, None if job.task.plain else task_from_settings(job.task)
    test = _read(data.test, "test", data, task, data.listed_columns) if data.test else None
    found = table_of(test.source, test.table) if test and test.table and test.table.columns else data.listed_columns
    found = found and msgspec.structs.replace(found, by_position=data.by_position or data.columns is not None)
    exemplar_file = _read(data.exemplars, "train", data, task, found) if data.exemplars else None
    made = public_side(data, job.seed, test, exemplar_file) if task is None else _public_task(job, test, exemplar_file)
    return replace(made, table=job_table(data, made, [each for each in (test, exemplar_file) if each is not None]))


def job_table(data: JobData, made: PublicData, files: list[Content]) -> TableSpec | None:
    """Return the columns by which devices match theirs; None if a sample is not a row of a table."""
    shape, kind = made.input.shape, made.task.kind if made.task else "classification"
    found = next((table_of(each.source, each.table) for each in files if each.table and each.table.columns), None)
    for each in files:
        if each.table and not each.table.columns and data.columns is None and not data.by_position:
            raise DataError(
                f"{each.source} has no header, and devices match columns by name: add a header line, or list the "
                "columns in data.columns, or set data.by_position = true if every table has the same order"
            )
    if found is None and data.columns is None and (kind == "tokens" or len(shape) != (2 if kind == "forecast" else 1)):
        return None
    table = found or TableSpec(data.columns or ())
    wanted = shape[-1] if kind == "forecast" else prod(shape)
    if table.columns and len(table.columns) != wanted:
        raise DataError(f"data.columns names {len(table.columns)} columns, and a sample of the job has {wanted} values")
    label = table.label if kind in ("classification", "multilabel", "reconstruction") else None
    return msgspec.structs.replace(table, label=label or data.label_name, by_position=data.by_position)


def _public_task(job: JobSettings, test_file: Content | None, exemplar_file: Content | None) -> PublicData:
    """Return the public data of a task other than a plain classification."""
    data, files = job.data, [content for content in (test_file, exemplar_file) if content is not None]
    found = task_data(job.task, data, job.seed, test_file, exemplar_file)
    values = _values(data, [samples for samples in (found.exemplars, found.test) if samples])
    read = (found.test, found.exemplars if exemplar_file else None)
    left = tuple(text for samples in read if samples for text in samples.skipped)
    odd = (*_warnings(files, found.task), *((found.fewer,) if found.fewer else ()))
    shown_packed = packed(found.exemplars, found.task, data.dtype, test=False) if found.exemplars else None
    test_packed = packed(found.test, found.task, data.dtype, test=True) if found.test else None
    return PublicData(
        found.input, found.classes, found.mean, found.std, shown_packed, test_packed, left, values, odd, found.task,
        found.scaling,
    )  # fmt: skip


def public_side(data: JobData, seed: int, test_file: Content | None, exemplar_file: Content | None) -> PublicData:
    """Return the public side of a plain classification from the contents of its files."""
    files = [content for content in (test_file, exemplar_file) if content is not None]
    form = SampleForm(InputSpec(data.input or _shape(files, data), data.dtype), data.classes or classes_of(files))
    test, exemplars = (None if content is None else fit(content, form) for content in (test_file, exemplar_file))
    skipped = tuple(text for samples in (test, exemplars) if samples for text in samples.skipped)
    fewer = None
    if test_file and test and exemplars is None:
        order = generator(seed, "exemplars").permutation(len(test.y))
        test, exemplars, fewer = cut(test, order, test.y, data.exemplars_per_class, test_file.source)
    given = bool(data.mean or data.std)
    mean, std = (data.mean, data.std) if given else normalisation(exemplars.x if exemplars else None, form.input)
    values = _values(data, [samples for samples in (exemplars, test) if samples])
    both = _packed(exemplars, data), _packed(test, data)
    few = _few_tests(test, exemplars, form.classes) if test and exemplars and exemplar_file is None else ()
    warnings = (*_warnings(files), *([fewer] if fewer else []), *few)
    return PublicData(form.input, form.classes, mean, std, *both, skipped, values, warnings)


def _warnings(files: list[Content], task: TaskSpec | None = None) -> Iterator[str]:
    for each in files:
        for warning in data_warnings(each, task):
            yield f"{each.source}: {warning.what} ({warning.detail}); to do: {warning.remedy}"


def _few_tests(test: Samples, exemplars: Samples, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Warn if the exemplars leave too few test samples for a meaningful accuracy."""
    if len(test.y) >= len(classes):
        return ()
    left = f"only {len(test.y)} samples are left to test on, because {len(exemplars.y)} of the test set are exemplars"
    return (f"{left}; to do: give a larger test set, or lower data.exemplars_per_class",)


def _values(data: JobData, files: list[Samples]) -> ValueRange | None:
    """Return the range that the job requires, or by default that of its samples, which must be within it."""
    ranges = [found for samples in files if (found := value_range(samples.x))] if data.dtype != "int64" else []
    low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
    if data.range is None:
        return ValueRange(max(low, -MAX_NUMBER), min(high, MAX_NUMBER)) if ranges else None
    wanted = ValueRange(*data.range, demanded=True)
    if ranges and (warning := scale_warning((low, high), wanted)):
        raise DataError(
            f"data.range is {wanted.low:g} to {wanted.high:g}, and the job's own samples go from {low:g} to {high:g}: "
            f"correct data.range, or {warning.remedy}"
        )
    return wanted


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return scikit-learn's digits: 1,797 images of 8x8, values 0 to 16."""
    # Read from its file: importing sklearn takes two seconds, and a job is prepared in a separate process.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(path), delimiter=",")
    return rows[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32), rows[:, -1].astype(np.int64)


def digits_split(*, train: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return a fixed split of the digits: every fifth sample is for testing."""
    x, y = digits()
    tested = np.arange(len(y)) % 5 == 0
    return (x[~tested], y[~tested]) if train else (x[tested], y[tested])


def _read(
    name: str, part: Purpose, data: JobData, task: TaskSpec | None = None, table: TableSpec | None = None
) -> Content:
    if name == DIGITS:
        return content_of(*digits_split(train=part == "train"), tuple(str(digit) for digit in range(10)), name)
    if not Path(name).exists():
        raise DataError(f"{name}: the coordinator's machine has no such file")
    wanted = InputSpec(data.input, data.dtype) if data.input else None
    return read_content(data.files(name), part, wanted, data.classes, task, table)


def _shape(files: list[Content], data: JobData) -> tuple[int, ...]:
    if not files:
        raise DataError("data.input is missing, and there is no file to read it from")
    return natural_shape(files[0].x, data.dtype)


def normalisation(
    exemplars: NDArray[np.generic] | None, wanted: InputSpec
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Return mean and standard deviation of the exemplars, by channel for images and over all values otherwise."""
    if exemplars is None or wanted.dtype == "int64":
        return None, None
    x = np.ascontiguousarray(exemplars, dtype=np.float64)
    if len(wanted.shape) != 3:
        return (float(x.mean()),), (float(x.std()) or 1.0,)
    axes = (0, 2, 3)
    mean, std = x.mean(axis=axes), x.std(axis=axes)
    return tuple(float(m) for m in mean), tuple(float(s) or 1.0 for s in std)


def _packed(samples: Samples | None, data: JobData) -> Exemplars | None:
    if samples is None:
        return None
    return Exemplars.of(stored(samples.x, data.dtype), samples.y)
