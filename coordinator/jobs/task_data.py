"""What the coordinator needs of the data of a task that is no plain classification: targets, their scale, strata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from coordinator.jobs.stratifying import strata_in
from coordinator.jobs.task_settings import LOSSES
from sojourn.data.labels import classes_of
from sojourn.data.samples import SampleForm, Samples, fit, natural_shape
from sojourn.data.targets import label_names
from sojourn.errors import DataError
from sojourn.model.exemplars import Exemplars
from sojourn.model.strata import strata_of
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec, Window
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.jobs.settings import JobData
    from coordinator.jobs.task_settings import TaskSettings
    from sojourn.data.samples import Content

    Numbers = tuple[float, ...]

FLAT = 1e-6
"""Of its mean: a deviation below this is none, and values are not divided by it."""


@dataclass(frozen=True)
class TaskData:
    """The samples of a task that a job's files hold, and all that was found in them.

    mean, std: of samples; scaling: of targets, by the last axis; both None where there are no exemplars.
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
    """That fewer exemplars were cut than the job asks for, and what to do."""


def asked_task(settings: TaskSettings) -> TaskSpec:
    """The task as far as a job file says it: enough to read files by."""
    loss = settings.loss or LOSSES[settings.kind][0]
    window = Window(settings.steps, settings.horizon, settings.stride) if settings.steps else None
    target = None if settings.kind == "reconstruction" else Target((max(1, len(settings.targets)),))
    normal = settings.normal if settings.kind == "reconstruction" else ()
    return TaskSpec(
        settings.kind, (1,), target, Strata(1), settings.targets, loss, window=window, beside=settings.beside,
        normal=normal,
    )  # fmt: skip


def task_data(  # what a job says, and what its files hold
    settings: TaskSettings, data: JobData, seed: int, tested: Content | None, shown: Content | None
) -> TaskData:
    """The public side of a task in what the files hold."""
    files = [content for content in (tested, shown) if content is not None]
    form = task_form(settings, data, files)
    assert form.task  # noqa: S101  # made above
    test = None if tested is None else fit(tested, form, "test")
    exemplars = None if shown is None else fit(shown, form)
    public = exemplars or (None if test is None else _normal(test, form.task))
    task = form.task
    if public is not None:
        task = _with_strata(task, settings, public, seed, len(form.classes))
    fewer = None
    if exemplars is None and test is not None and tested is not None:
        test, exemplars, fewer = _cut(test, task, data.exemplars_per_class, seed, tested.source)
    mean, std, scaling = scales_in(task, data, exemplars, form.input)
    if exemplars is not None:
        task = msgspec.structs.replace(task, blind=blind(task, exemplars, scaling))
    return TaskData(form.input, form.classes, task, test, exemplars, mean, std, scaling, fewer)


def scales_in(
    task: TaskSpec, data: JobData, exemplars: Samples | None, spec: InputSpec
) -> tuple[Numbers | None, Numbers | None, tuple[Numbers, Numbers] | None]:
    """Mean and deviation of samples, and both of targets."""
    mean, std = (data.mean, data.std) if data.mean or data.std else _scale_of_samples(exemplars, spec)
    return mean, std, _scaling(task, exemplars, spec, mean, std)


def unpacked(exemplars: Exemplars, task: TaskSpec) -> Samples:
    """Exemplars as they were before they were packed; no faulty ones are among them."""
    x, y = exemplars.packed()
    compared = np.zeros(len(y), np.int64) if task.kind == "reconstruction" else exemplars.compared()
    return Samples(x, compared, (), np.ones(len(y), np.bool_))


def packed(samples: Samples, task: TaskSpec, dtype: str, *, test: bool) -> Exemplars:
    """Samples as they travel, with targets and strata; of a test set, which are faulty."""
    wanted = np.int64 if dtype == "int64" else np.uint8 if samples.x.dtype == np.uint8 else np.float32
    x, y = np.asarray(samples.x).astype(wanted), np.asarray(samples.y)
    targets = None if task.target is None or task.kind == "classification" else y
    made = Exemplars.of(x, strata_of(task, x, y), targets)
    faulty = np.flatnonzero(y) if test and task.kind == "reconstruction" else np.zeros(0, np.int64)
    return msgspec.structs.replace(made, faulty=tuple(map(int, faulty))) if len(faulty) else made


def blind(task: TaskSpec, exemplars: Samples, scaling: tuple[Numbers, Numbers] | None) -> float:
    """The mean loss of outputs that are all zero before scaling; 1 for a loss of one's own, which torch finds."""
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
    """Numbers by channel as they go with a sample: an image's channels come first, all others last."""
    found = np.array(values, np.float32)
    return found.reshape(-1, 1, 1) if len(shape) == 3 else found


def task_form(settings: TaskSettings, data: JobData, files: list[Content]) -> SampleForm:
    """What samples must be like: their shape, and that of targets."""
    task = asked_task(settings)
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
        raise DataError("data.input is not given, and there is no file to take it from")
    found = tuple(int(size) for size in first.x.shape[1:]) or (1,)
    if settings.kind == "forecast" and settings.steps:
        cut = first.targets is not None and found == (settings.steps,)  # windows of one channel
        return (settings.steps, 1 if cut else found[-1])
    if settings.kind == "tokens":
        if len(first.x.shape) != 2:
            raise DataError("data.input is not given: how many tokens the model sees at once, such as [64]")
        return found if first.targets is not None else (max(1, found[0] - 1),)
    if settings.kind == "reconstruction" and len(found) <= 2:
        return found
    return natural_shape(first.x, data.dtype)


def _quantities(first: Content | None) -> int:
    if first is None:
        raise DataError("task.targets is not given, and there is no file to take the quantities from")
    return 1 if first.targets is None else max(1, prod(first.targets.shape[1:]))


def _vocabulary(files: list[Content]) -> int:
    if not files:
        raise DataError("task.vocabulary is not given, and there is no file to take it from")
    # Bytes may be any, also those that the job's own texts happen not to have.
    return max(256 if each.x.dtype == np.uint8 else 1 + int(np.asarray(each.x).max(initial=0)) for each in files)


def _normal(samples: Samples, task: TaskSpec) -> Samples:
    """The samples that are as they should be, where it is known of some that they are not."""
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
    """Refuse quantities that are always the same: nothing is learnt of them, and they have no scale."""
    flat = y.reshape(-1, y.shape[-1]).astype(np.float64)
    for at in np.flatnonzero(flat.min(axis=0) == flat.max(axis=0)):
        name = repr(task.names[at]) if at < len(task.names) else f"number {at + 1}"
        raise DataError(
            f"the quantity {name} is {flat[0, at]:g} in all {len(y):,} of the job's samples, so that there is nothing "
            "to learn: leave it out of task.targets, or give a test set in which it varies"
        )


def _cut(test: Samples, task: TaskSpec, each: int, seed: int, source: str) -> tuple[Samples, Samples, str | None]:
    """Some samples of each stratum as exemplars, the others for testing; what is faulty is only tested."""
    x, y = np.asarray(test.x), np.asarray(test.y)
    strata = strata_of(task, x, y)
    order = generator(seed, "exemplars").permutation(len(y))
    order = order[y[order] == 0] if task.kind == "reconstruction" else order
    return cut(test, order, strata, each, source)


def cut(
    test: Samples, order: NDArray[np.int64], strata: NDArray[np.int64], each: int, source: str
) -> tuple[Samples, Samples, str | None]:
    """The first samples of each stratum in this order as exemplars, the others for testing.

    Fewer than `each` where they would be more than half of what there is; then also a line that says so.
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
            f"{source}: its {len(y):,} samples are one for each of {len(there)} classes or strata, and one exemplar "
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
    """Mean and deviation of the exemplars by channel: of an image its first axis, of all others the last one."""
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
    std = np.where(std > FLAT * np.maximum(1e-30, np.abs(mean)), std, 1.0)
    return tuple(map(float, mean)), tuple(map(float, std))
