"""The public data of a task: its strata, scales, test set and exemplars.

The same samples and seed give the same strata. For one quantity they are ranges with equally many samples; for several
numbers they are clusters (k-means) of the numbers divided by their standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.jobs.settings import JobData
from coordinator.jobs.settings_tables import LOSSES, TaskSettings
from sojourn.data.labels import classes_of, label_names
from sojourn.data.samples import Content, SampleForm, Samples, fit, natural_shape
from sojourn.errors import DataError
from sojourn.model.exemplars import Exemplars
from sojourn.model.strata import numbers, strata_of
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec, Window
from sojourn.randomness import generator

Rows = NDArray[np.float64]
Numbers = tuple[float, ...]

PASSES = 50
MAX_CLUSTERED = 20_000
"""The maximum number of samples for clustering; of more, this many evenly spaced ones are used."""


def strata_in(task: TaskSpec, x: NDArray[np.generic], y: NDArray[np.generic], wanted: int, seed: int) -> Strata:
    """Return the strata of these samples: as many as wanted, or fewer if the samples do not differ enough."""
    rows = np.linspace(0, len(x) - 1, min(len(x), MAX_CLUSTERED)).astype(np.int64)
    found = numbers(task, x[rows], y[rows])
    if found.shape[1] == 1:
        return _ranges(found[:, 0], wanted)
    scale = found.std(axis=0)
    scale = np.where(scale > 1e-9 * np.maximum(1.0, np.abs(found).max(axis=0)), scale, 1.0)
    centres = _clusters(found / scale, wanted, seed) * scale
    order = np.lexsort(centres.T[::-1])
    as_floats = (tuple(float(value) for value in centre) for centre in centres[order])
    return Strata(len(centres), centres=tuple(as_floats), scale=tuple(float(value) for value in scale))


def _ranges(values: Rows, wanted: int) -> Strata:
    """Return ranges with equally many values; fewer ranges if many values are equal."""
    edges = np.unique(np.quantile(values, np.arange(1, wanted) / wanted))
    edges = edges[edges < values.max()]  # some values must be above the last edge
    if not len(edges) and values.min() < values.max():  # nearly all are the largest value
        edges = values[values < values.max()].max(keepdims=True)
    return Strata(len(edges) + 1, edges=tuple(float(edge) for edge in edges))


def _clusters(rows: Rows, wanted: int, seed: int) -> Rows:
    """Return the centres of k-means with k-means++ initialisation, without empty clusters."""
    draw = generator(seed, "strata")
    centres = rows[[int(draw.integers(len(rows)))]]
    while len(centres) < wanted:
        nearest = _apart(rows, centres).min(axis=1)
        if nearest.sum() <= 0:  # all other samples equal a centre
            break
        centres = np.concatenate([centres, rows[[int(draw.choice(len(rows), p=nearest / nearest.sum()))]]])
    for _ in range(PASSES):
        which = _apart(rows, centres).argmin(axis=1)
        there = np.unique(which)
        moved = np.stack([rows[which == each].mean(axis=0) for each in there])
        if moved.shape == centres.shape and np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _apart(rows: Rows, centres: Rows) -> Rows:
    return np.asarray(np.square(rows[:, np.newaxis] - centres[np.newaxis]).sum(axis=2))


MIN_DEVIATION = 1e-6
"""Relative to the mean: values are not divided by a smaller deviation."""


@dataclass(frozen=True)
class TaskData:
    """The samples of a task in a job's files, and what was computed from them.

    mean, std: of samples; scaling: of targets, by the last axis; None without exemplars.
    """

    input: InputSpec
    classes: tuple[str, ...]
    task: TaskSpec
    test: Samples | None
    exemplars: Samples | None
    mean: Numbers | None
    std: Numbers | None
    scaling: tuple[Numbers, Numbers] | None
    fewer: str | None = None
    """A warning that fewer exemplars were cut than the job requests, with a fix."""


def task_from_settings(settings: TaskSettings) -> TaskSpec:
    """Return the task without what is computed from data: enough to read files."""
    loss = settings.loss or LOSSES[settings.kind][0]
    window = Window(settings.steps, settings.horizon, settings.stride) if settings.steps else None
    target = None if settings.kind == "reconstruction" else Target((max(1, len(settings.targets)),))
    normal = settings.normal if settings.kind == "reconstruction" else ()
    return TaskSpec(
        settings.kind, (1,), target, Strata(1), settings.targets, loss, window=window, normal=normal,
        reference_models=settings.reference_models,
    )  # fmt: skip


def task_data(
    settings: TaskSettings, data: JobData, seed: int, test_file: Content | None, exemplar_file: Content | None
) -> TaskData:
    """Return the public side of a task from the contents of its files."""
    files = [content for content in (test_file, exemplar_file) if content is not None]
    form = task_form(settings, data, files)
    assert form.task  # noqa: S101  # made above
    test = None if test_file is None else fit(test_file, form, "test")
    exemplars = None if exemplar_file is None else fit(exemplar_file, form)
    public = exemplars or (None if test is None else _normal(test, form.task))
    task = form.task
    if public is not None:
        task = _with_strata(task, settings, public, seed, len(form.classes))
    fewer = None
    if exemplars is None and test is not None and test_file is not None:
        test, exemplars, fewer = _cut(test, task, data.exemplars_per_class, seed, test_file.source)
    mean, std, scaling = scales_in(task, data, exemplars, form.input)
    if exemplars is not None:
        task = msgspec.structs.replace(task, blind=blind(task, exemplars, scaling))
    return TaskData(form.input, form.classes, task, test, exemplars, mean, std, scaling, fewer)


def scales_in(
    task: TaskSpec, data: JobData, exemplars: Samples | None, spec: InputSpec
) -> tuple[Numbers | None, Numbers | None, tuple[Numbers, Numbers] | None]:
    """Return the mean and deviation of samples, and both for targets."""
    mean, std = (data.mean, data.std) if data.mean or data.std else _scale_of_samples(exemplars, spec)
    return mean, std, _scaling(task, exemplars, spec, mean, std)


def unpacked(exemplars: Exemplars, task: TaskSpec) -> Samples:
    """Return packed exemplars as samples; none of them are faulty."""
    x, y = exemplars.packed()
    compared = np.zeros(len(y), np.int64) if task.kind == "reconstruction" else exemplars.expected()
    return Samples(x, compared, (), np.ones(len(y), np.bool_))


def stored(x: NDArray[np.generic], dtype: str) -> NDArray[np.generic]:
    """Return samples in the type in which they are stored; bytes stay bytes."""
    wanted = np.int64 if dtype == "int64" else np.uint8 if x.dtype == np.uint8 else np.float32
    return np.asarray(x).astype(wanted)


def packed(samples: Samples, task: TaskSpec, dtype: str, *, test: bool) -> Exemplars:
    """Return samples in the form that is sent, with targets and strata; a test set also lists its faulty ones."""
    x, y = stored(samples.x, dtype), np.asarray(samples.y)
    targets = None if task.target is None or task.kind == "classification" else y
    made = Exemplars.of(x, strata_of(task, x, y), targets)
    faulty = np.flatnonzero(y) if test and task.kind == "reconstruction" else np.zeros(0, np.int64)
    return msgspec.structs.replace(made, faulty=tuple(map(int, faulty))) if len(faulty) else made


def blind(task: TaskSpec, exemplars: Samples, scaling: tuple[Numbers, Numbers] | None) -> float:
    """Return the mean loss of outputs that are all zero before scaling; 1 for a custom loss, which torch computes."""
    if task.kind == "multilabel":
        return log(2)
    if task.kind in ("classification", "tokens"):
        return log(max(2, task.output[-1]))
    values = np.asarray(exemplars.x if task.target is None else exemplars.y, np.float64)
    if scaling is not None:
        mean, std = (shaped_scale(each, values.shape[1:]) for each in scaling)
        values = (values - mean) / std
    size = np.abs(values)
    match task.loss:
        case "mse":
            found = np.square(size).mean()
        case "l1":
            found = size.mean()
        case "huber":
            found = np.where(size <= 1, 0.5 * np.square(size), size - 0.5).mean()
        case _:
            return 1.0
    return float(found) if found > 0 else 1.0


def shaped_scale(values: Numbers, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers by channel in the shape of a sample: channels are first in an image and last otherwise."""
    found = np.array(values, np.float32)
    return found.reshape(-1, 1, 1) if len(shape) == 3 else found


def task_form(settings: TaskSettings, data: JobData, files: list[Content]) -> SampleForm:
    """Return the required form of samples: their shape, and that of targets."""
    task = task_from_settings(settings)
    first = files[0] if files else None
    shape = data.input or _shape(settings, data, first)
    spec = InputSpec(shape, "int64" if settings.kind == "tokens" else data.dtype)
    classes, output, target = data.classes or (), tuple[int, ...](), task.target
    match settings.kind:
        case "classification":
            classes = classes or classes_of(files)
            output, target = (len(classes),), Target((), "int64")
        case "multilabel":
            classes = classes or tuple(dict.fromkeys(name for each in files for name in label_names(each)))
            output = (len(classes),)
            target = Target(output)
        case "reconstruction":
            output = shape
        case "forecast":
            channels = len(settings.targets) or shape[-1]
            output = (settings.horizon, channels)
            target = Target(output)
        case "tokens":
            output = (*shape, settings.vocabulary or _vocabulary(files))
            target = Target(shape, "int64")
        case "regression":
            output = (len(settings.targets) or _quantities(first),)
            target = Target(output)
    names = settings.targets or (first.target_names if first is not None and settings.kind == "regression" else ())
    names = names if len(names) == output[-1] else ()
    return SampleForm(spec, classes, msgspec.structs.replace(task, output=output, target=target, names=names))


def _shape(settings: TaskSettings, data: JobData, first: Content | None) -> tuple[int, ...]:
    if first is None:
        raise DataError("data.input is missing, and there is no file to read it from")
    found = tuple(int(size) for size in first.x.shape[1:]) or (1,)
    if settings.kind == "forecast" and settings.steps:
        cut = first.targets is not None and found == (settings.steps,)  # windows of one channel
        return (settings.steps, 1 if cut else found[-1])
    if settings.kind == "tokens":
        if len(first.x.shape) != 2:
            raise DataError("data.input is missing: set the number of tokens of the model's input, such as [64]")
        return found if first.targets is not None else (max(1, found[0] - 1),)
    if settings.kind == "reconstruction" and len(found) <= 2:
        return found
    return natural_shape(first.x, data.dtype)


def _quantities(first: Content | None) -> int:
    if first is None:
        raise DataError("task.targets is missing, and there is no file to read the quantities from")
    return 1 if first.targets is None else max(1, prod(first.targets.shape[1:]))


def _vocabulary(files: list[Content]) -> int:
    if not files:
        raise DataError("task.vocabulary is missing, and there is no file to read it from")
    # Any byte is possible, including those that do not occur in the job's texts.
    return max(256 if each.x.dtype == np.uint8 else 1 + int(np.asarray(each.x).max(initial=0)) for each in files)


def _normal(samples: Samples, task: TaskSpec) -> Samples:
    """Return the normal samples, if the labels mark some as faulty."""
    if task.kind != "reconstruction" or not samples.y.any():
        return samples
    if samples.y.all():
        raise DataError("the test set has no sample that is labelled as normal: add some, or set task.normal")
    rows = np.flatnonzero(samples.y == 0)
    return replace(samples, x=np.asarray(samples.x)[rows], y=samples.y[rows])


def _with_strata(task: TaskSpec, settings: TaskSettings, public: Samples, seed: int, classes: int) -> TaskSpec:
    x, y = np.asarray(public.x), np.asarray(public.y)
    if task.kind in ("classification", "multilabel"):
        return msgspec.structs.replace(task, strata=Strata(max(1, classes)))
    if task.kind in ("regression", "forecast"):
        _check_spread(task, y)
        flat = y.reshape(-1, y.shape[-1]).astype(np.float64)
        ranges = tuple(zip(flat.min(axis=0).tolist(), flat.max(axis=0).tolist(), strict=True))
        task = msgspec.structs.replace(task, ranges=ranges)
    return msgspec.structs.replace(task, strata=strata_in(task, x, y, settings.strata, seed))


def _check_spread(task: TaskSpec, y: NDArray[np.generic]) -> None:
    """Refuse constant quantities: there is nothing to learn, and they have no scale."""
    flat = y.reshape(-1, y.shape[-1]).astype(np.float64)
    for at in np.flatnonzero(flat.min(axis=0) == flat.max(axis=0)):
        name = repr(task.names[at]) if at < len(task.names) else f"number {at + 1}"
        raise DataError(
            f"the quantity {name} is {flat[0, at]:g} in all {len(y):,} of the job's samples, so there is nothing "
            "to learn: leave it out of task.targets, or give a test set in which it varies"
        )


def _cut(test: Samples, task: TaskSpec, each: int, seed: int, source: str) -> tuple[Samples, Samples, str | None]:
    """Cut exemplars of each stratum; the other samples, and all faulty ones, are for testing."""
    x, y = np.asarray(test.x), np.asarray(test.y)
    strata = strata_of(task, x, y)
    order = generator(seed, "exemplars").permutation(len(y))
    order = order[y[order] == 0] if task.kind == "reconstruction" else order
    return cut(test, order, strata, each, source)


def cut(
    test: Samples, order: NDArray[np.int64], strata: NDArray[np.int64], each: int, source: str
) -> tuple[Samples, Samples, str | None]:
    """Return the other samples for testing, and the first samples of each stratum in this order as exemplars.

    Takes fewer than `each` if they would be more than half of all samples, and then also returns a warning.
    """
    x, y = np.asarray(test.x), np.asarray(test.y)
    there, counts = np.unique(strata[order], return_counts=True)
    taken = each
    while taken > 1 and np.minimum(counts, taken).sum() > len(order) // 2:
        taken = min(taken, int(counts.max())) - 1 or 1
    chosen = np.concatenate([order[strata[order] == stratum][:taken] for stratum in there])
    rest = np.setdiff1d(np.arange(len(y)), chosen)
    if not len(rest):
        raise DataError(
            f"{source}: its {len(y):,} samples are in {len(there)} classes or strata, and one exemplar "
            "of each leaves nothing to test on: give a larger test set, or a file with exemplars in data.exemplars"
        )
    fewer = None
    if taken < each:
        fewer = (
            f"{source}: {each} exemplars of each class or stratum would be more than half of its {len(order):,} "
            f"samples, so {taken} of each are taken; to do: give a larger test set, a file with exemplars in "
            f"data.exemplars, or set data.exemplars_per_class = {taken}"
        )
    pick = [replace(test, x=x[at], y=y[at]) for at in (rest, np.sort(chosen))]
    return pick[0], pick[1], fewer


def _scale_of_samples(exemplars: Samples | None, spec: InputSpec) -> tuple[Numbers | None, Numbers | None]:
    """Return mean and deviation of the exemplars by channel: the first axis of an image, the last one otherwise."""
    if exemplars is None or spec.dtype == "int64":
        return None, None
    x = np.asarray(exemplars.x, np.float64).reshape(-1, *spec.shape)
    x = np.moveaxis(x, 1, -1) if len(spec.shape) == 3 else x
    return _mean_and_std(x.reshape(-1, x.shape[-1]))


def _scaling(
    task: TaskSpec, exemplars: Samples | None, spec: InputSpec, mean: Numbers | None, std: Numbers | None
) -> tuple[Numbers, Numbers] | None:
    if task.kind == "reconstruction":
        channels = spec.shape[0] if len(spec.shape) == 3 else spec.shape[-1]
        return None if mean is None and std is None else (mean or (0.0,) * channels, std or (1.0,) * channels)
    if task.kind not in ("regression", "forecast") or exemplars is None:
        return None
    y = np.asarray(exemplars.y, np.float64)
    return _mean_and_std(y.reshape(-1, y.shape[-1]))


def _mean_and_std(rows: NDArray[np.float64]) -> tuple[Numbers, Numbers]:
    mean, std = rows.mean(axis=0), rows.std(axis=0)
    std = np.where(std > MIN_DEVIATION * np.maximum(1e-30, np.abs(mean)), std, 1.0)
    return tuple(map(float, mean)), tuple(map(float, std))
