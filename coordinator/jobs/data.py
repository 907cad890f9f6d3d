"""What the coordinator needs of a job's data: a test set, exemplars cut from it, class names, normalisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import distribution
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.jobs.settings import DIGITS
from coordinator.jobs.task_data import asked_task, cut, packed, task_data
from sojourn.data.column_names import table_of
from sojourn.data.doubts import doubts_of
from sojourn.data.labels import classes_of
from sojourn.data.samples import SampleForm, content_of, fit, natural_shape
from sojourn.data.scale_check import range_of, scale_doubt
from sojourn.data.source import read_content
from sojourn.errors import DataError
from sojourn.model.exemplars import Exemplars
from sojourn.protocol.limits import MOST_FIGURE
from sojourn.protocol.spec import InputSpec, TableSpec, ValueRange
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.jobs.settings import JobData, JobSettings
    from sojourn.data.samples import Content, Samples
    from sojourn.data.source import Purpose
    from sojourn.protocol.task import TaskSpec


@dataclass(frozen=True)
class PublicData:
    """The public side of a job's data; `skipped` tells what was left out of its files."""

    input: InputSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    exemplars: Exemplars | None
    test: Exemplars | None
    skipped: tuple[str, ...] = ()
    values: ValueRange | None = None
    """Where devices' values are expected."""
    odd: tuple[str, ...] = ()
    """What looks odd about the files, and what to do."""
    task: TaskSpec | None = None
    """What is learnt, where it is no plain classification."""
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and deviation of the exemplars' targets, by channel."""
    table: TableSpec | None = None
    """The columns of a sample by name, where it is a row of a table."""

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of what a model answers for one sample."""
        return self.task.output if self.task else (len(self.classes),)

    @property
    def strata(self) -> int:
        """Into how many classes or strata exemplars fall."""
        return self.task.strata.count if self.task else len(self.classes)


def public_data(job: JobSettings) -> PublicData:
    """Read what the job names; exemplars come from their own file, or are cut from the test set and never tested on."""
    data, task = job.data, None if job.task.plain else asked_task(job.task)
    test = _read(data.test, "test", data, task, data.asked) if data.test else None
    found = table_of(test.source, test.table) if test and test.table and test.table.columns else data.asked
    found = found and msgspec.structs.replace(found, by_position=data.by_position or data.columns is not None)
    shown = _read(data.exemplars, "train", data, task, found) if data.exemplars else None
    made = public_side(data, job.seed, test, shown) if task is None else _public_task(job, test, shown)
    return replace(made, table=job_table(data, made, [each for each in (test, shown) if each is not None]))


def job_table(data: JobData, made: PublicData, files: list[Content]) -> TableSpec | None:
    """The columns by which devices match theirs; None where a sample is not a row of a table."""
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


def _public_task(job: JobSettings, tested: Content | None, shown: Content | None) -> PublicData:
    """The same, of a task that is no plain classification."""
    data, files = job.data, [content for content in (tested, shown) if content is not None]
    found = task_data(job.task, data, job.seed, tested, shown)
    values = _values(data, [samples for samples in (found.exemplars, found.test) if samples])
    left = tuple(
        text for samples in (found.test, found.exemplars if shown else None) if samples for text in samples.skipped
    )
    odd = tuple(
        f"{each.source}: {doubt.what} ({doubt.detail}); to do: {doubt.remedy}"
        for each in files
        for doubt in doubts_of(each, found.task)
    ) + ((found.fewer,) if found.fewer else ())
    shown_packed = packed(found.exemplars, found.task, data.dtype, test=False) if found.exemplars else None
    test_packed = packed(found.test, found.task, data.dtype, test=True) if found.test else None
    return PublicData(
        found.input, found.classes, found.mean, found.std, shown_packed, test_packed, left, values, odd, found.task,
        found.scaling,
    )  # fmt: skip


def public_side(data: JobData, seed: int, tested: Content | None, shown: Content | None) -> PublicData:
    """The public side of a job's data in what its files hold."""
    files = [content for content in (tested, shown) if content is not None]
    form = SampleForm(InputSpec(data.input or _shape(files, data), data.dtype), data.classes or classes_of(files))
    test, exemplars = (None if content is None else fit(content, form) for content in (tested, shown))
    skipped = tuple(text for samples in (test, exemplars) if samples for text in samples.skipped)
    fewer = None
    if tested and test and exemplars is None:
        order = generator(seed, "exemplars").permutation(len(test.y))
        test, exemplars, fewer = cut(test, order, test.y, data.exemplars_per_class, tested.source)
    given = bool(data.mean or data.std)
    mean, std = (data.mean, data.std) if given else normalisation(exemplars.x if exemplars else None, form.input)
    values = _values(data, [samples for samples in (exemplars, test) if samples])
    both = _packed(exemplars, data), _packed(test, data)
    odd = tuple(
        f"{each.source}: {doubt.what} ({doubt.detail}); to do: {doubt.remedy}"
        for each in files
        for doubt in doubts_of(each)
    )
    few = _few_tests(test, exemplars, form.classes) if test and exemplars and shown is None else ()
    told = (*odd, *([fewer] if fewer else []), *few)
    return PublicData(form.input, form.classes, mean, std, *both, skipped, values, told)


def _few_tests(test: Samples, exemplars: Samples, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Whether exemplars took so many of the test set that accuracy on the rest says little."""
    if len(test.y) >= len(classes):
        return ()
    left = f"only {len(test.y)} samples are left to test on, since {len(exemplars.y)} of the test set are exemplars"
    return (f"{left}; to do: give a larger test set, or lower data.exemplars_per_class",)


def _values(data: JobData, files: list[Samples]) -> ValueRange | None:
    """The range that the job demands, or else that of its own samples, which must be within the former."""
    ranges = [found for samples in files if (found := range_of(samples.x))] if data.dtype != "int64" else []
    low, high = min((low for low, _ in ranges), default=0.0), max((high for _, high in ranges), default=0.0)
    if data.range is None:
        return ValueRange(max(low, -MOST_FIGURE), min(high, MOST_FIGURE)) if ranges else None
    wanted = ValueRange(*data.range, demanded=True)
    if ranges and (doubt := scale_doubt((low, high), wanted)):
        raise DataError(
            f"data.range is {wanted.low:g} to {wanted.high:g}, and the job's own samples go from {low:g} to {high:g}: "
            f"correct data.range, or {doubt.remedy}"
        )
    return wanted


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scikit-learn's digits: 1,797 images of 8x8, values 0 to 16."""
    # From its file: importing sklearn takes two seconds, and a job is prepared in a process of its own.
    path = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(path), delimiter=",")
    return rows[:, :-1].reshape(-1, 1, 8, 8).astype(np.float32), rows[:, -1].astype(np.int64)


def digits_split(*, train: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A fixed split of the digits: every fifth is for testing."""
    x, y = digits()
    tested = np.arange(len(y)) % 5 == 0
    return (x[~tested], y[~tested]) if train else (x[tested], y[tested])


def _read(
    name: str, part: Purpose, data: JobData, task: TaskSpec | None = None, table: TableSpec | None = None
) -> Content:
    if name == DIGITS:
        return content_of(*digits_split(train=part == "train"), tuple(str(digit) for digit in range(10)), name)
    if not Path(name).exists():
        raise DataError(f"{name}: there is no such file on the coordinator's machine")
    wanted = InputSpec(data.input, data.dtype) if data.input else None
    return read_content(data.files(name), part, wanted, data.classes, task, table)


def _shape(files: list[Content], data: JobData) -> tuple[int, ...]:
    if not files:
        raise DataError("data.input is not given, and there is no file to take it from")
    return natural_shape(files[0].x, data.dtype)


def normalisation(
    shown: NDArray[np.generic] | None, wanted: InputSpec
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation of the exemplars by channel (images) or over all (flat data), as they are handed out."""
    if shown is None or wanted.dtype == "int64":
        return None, None
    x = np.ascontiguousarray(shown, dtype=np.float64)
    if len(wanted.shape) != 3:
        return (float(x.mean()),), (float(x.std()) or 1.0,)
    axes = (0, 2, 3)
    mean, std = x.mean(axis=axes), x.std(axis=axes)
    return tuple(float(m) for m in mean), tuple(float(s) or 1.0 for s in std)


def _packed(samples: Samples | None, data: JobData) -> Exemplars | None:
    if samples is None:
        return None
    wanted = np.int64 if data.dtype == "int64" else np.uint8 if samples.x.dtype == np.uint8 else np.float32
    return Exemplars.of(samples.x.astype(wanted), samples.y)
