"""From what a file holds to samples that a model takes: the one shaping of device, coordinator and simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType

from sojourn.data.labels import distinct, is_whole, shorten
from sojourn.data.series import forecast_windows, series_in
from sojourn.data.targets import FittedTargets, class_numbers, faults, label_flags, next_tokens, quantities
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sojourn.data.column_names import FoundColumns
    from sojourn.data.labels import Labels
    from sojourn.data.series import Series
    from sojourn.data.source import Form, Purpose
    from sojourn.protocol.spec import InputSpec, TableSpec
    from sojourn.protocol.task import TaskSpec

_BLOCK = 1024


class Doubt(NamedTuple):
    """Something that makes one doubt that data was understood as it was meant.

    what: in a few words without values and names, so that others may read it; detail: more, for the owner alone.
    remedy: what to do.
    """

    what: str
    detail: str
    remedy: str


@dataclass(frozen=True)
class SampleForm:
    """What samples must fit, where there is no kit or card yet that says it."""

    input: InputSpec
    classes: tuple[str, ...]
    task: TaskSpec | UnsetType = UNSET
    table: TableSpec | UnsetType = UNSET


@dataclass(frozen=True)
class Content:
    """What a file or folder holds, as it holds it.

    labels are its distinct labels, `which` says which of them each sample has, and `names` what integer labels mean;
    where there are no labels `which` is -1. targets are the numbers that samples are compared with, a row for each, and
    target_names what their columns are called; labels that are numbers are targets as well. Where x are the steps of
    series, `series` says how they follow each other.
    table has the names of the columns, where the source is a table: of a CSV file without a header it has none.
    labelled_by says where the labels or targets come from and why, or what the source has instead ("no array 'y'");
    guessed, that neither the file nor its owner said so.
    """

    source: str
    x: NDArray[np.generic]
    labels: Labels
    which: NDArray[np.int64]
    names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    labelled_by: str = ""
    guessed: bool = False
    doubts: tuple[Doubt, ...] = ()
    targets: NDArray[np.generic] | None = None
    target_names: tuple[str, ...] = ()
    series: Series | None = None
    table: FoundColumns | None = None


@dataclass(frozen=True)
class Samples:
    """What a model is trained or tested on: x as compact as it was, y what it is compared with; and what was left out.

    y is class numbers (N,), or targets in the task's shape: float32, or int64 of tokens. A reconstruction has no
    targets, and y is 1 where a label says that the sample is faulty, else 0.
    kept says of each sample of the content whether it is here. Where samples are cut out of several series, machine
    says which of `machines` each is of.
    """

    x: NDArray[np.generic]
    y: NDArray[Any]
    skipped: tuple[str, ...]
    kept: NDArray[np.bool_]
    machine: NDArray[np.int64] | None = None
    machines: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """These samples as the graph takes them."""
        return np.ascontiguousarray(self.x[index], dtype=dtype), self.y[index]


def content_of(
    x: NDArray[np.generic],
    y: NDArray[np.generic] | None,
    names: tuple[str, ...],
    source: str,
    labelled_by: str = "",
) -> Content:
    """Samples and their labels or targets, a row each, or without any; labels may also stand in a column."""
    if y is None and x.ndim:
        return Content(source, x, (), no_labels(len(x)), names, labelled_by=labelled_by)
    y = np.array(None) if y is None else y
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    several = y.ndim > 1 and y.dtype.kind in "buif"
    if x.ndim < 1 or len(x) != len(y if y.ndim else ()) or (y.ndim != 1 and not several):
        raise DataError(f"{source}: x has the shape {x.shape} and y {y.shape}, not one label for each sample")
    fractions = y.dtype.kind == "f" and not is_whole(y)
    labels, which = ((), no_labels(len(y))) if several or fractions else distinct(y, source)
    targets = y if y.dtype.kind in "buif" else None
    return Content(source, x, labels, which, names, labelled_by=labelled_by, targets=targets)


def no_labels(samples: int) -> NDArray[np.int64]:
    """Which label each of so many samples has: none; it takes no memory, however many they are."""
    return np.broadcast_to(np.int64(-1), samples)


def fit(content: Content, form: Form, part: Purpose = "train") -> Samples:
    """The samples of these classes, or of this task, in the model's shape.

    Samples of other classes, and those that hold NaN or infinity, are left out and told in `skipped`: one bad row does
    not spoil a file. Where the roles once differed this holds for all of them: labels are compared by name, a number
    outside of the class names is an error, and so are floats where whole numbers are wanted.
    part: what the samples are for; only a test set keeps those that are labelled as faulty.
    """
    source = content.source
    if not len(content.which):
        reasons = (*content.skipped, *(f"{each.what}: {each.detail}; to do: {each.remedy}" for each in content.doubts))
        nothing = _nothing(content, form, reasons)
        raise nothing if reasons else DataError(f"{source}: there are no samples in it")
    if form.task and form.task.kind in ("forecast", "tokens") and not _is_cut(content, form.input, form.task):
        return _cut(content, form.input, form.task)
    targets = _targets(content, form, part)
    listed, skipped = targets.keep, [*content.skipped, *targets.skipped]
    if not listed.any():
        raise _nothing(content, form, skipped)
    x = shaped(numeric(content.x, form.input, source), form.input.shape, source)
    finite = _finite(x)
    if not finite[listed].all():
        skipped.append(f"{np.count_nonzero(~finite[listed])} samples with NaN or infinite values")
    keep = listed & finite
    if not keep.any():
        raise _nothing(content, form, skipped)
    return Samples(x if keep.all() else x[keep], targets.y[keep], tuple(skipped), keep)


def _is_cut(content: Content, wanted: InputSpec, task: TaskSpec) -> bool:
    """Whether somebody has cut the windows already: samples in the model's shape, each with what is to come."""
    if content.targets is None or content.series is not None or task.target is None:
        return False
    found = content.x.shape[1:]
    same = wanted.shape in (found, (*found, 1))
    return same and prod(content.targets.shape[1:]) == prod(task.target.shape)


def _cut(content: Content, wanted: InputSpec, task: TaskSpec) -> Samples:
    """Samples that overlap in series, or lie end to end in sequences of tokens."""
    if task.kind == "tokens":
        from sojourn.data.tokens import token_windows  # noqa: PLC0415  # which knows what a content is

        found, skipped = token_windows(content, wanted, task), content.skipped
    else:
        known = content if content.series else series_in(content)
        known = replace(known, x=numeric(known.x, wanted, content.source))
        found, skipped = forecast_windows(known, wanted, task), known.skipped
    return Samples(found.x, found.y, skipped, np.ones(len(found.x), np.bool_), found.machine, found.machines)


def _targets(content: Content, form: Form, part: Purpose) -> FittedTargets:
    match form.task:
        case UnsetType():
            return class_numbers(content, form.classes)
        case task if task.kind in ("regression", "forecast"):
            return quantities(content, task)
        case task if task.kind == "tokens":
            return next_tokens(content, task)
        case task if task.kind == "multilabel":
            return label_flags(content, form.classes)
        case task if task.kind == "reconstruction":
            return faults(content, task, part)
        case _:
            return class_numbers(content, form.classes)


def natural_shape(x: NDArray[np.generic], dtype: str) -> tuple[int, ...]:
    """The shape of one sample as a model takes it, where nobody says it.

    Three axes are an image, with its channels (1 or 3) first or last; two are a grey image unless they hold whole
    numbers for an embedding (int64); a sample that is one number is a row of one.
    """
    found = tuple(int(size) for size in x.shape[1:])
    if dtype == "int64" or len(found) <= 1:
        return found or (1,)
    if len(found) == 2:
        return (1, *found)
    if len(found) == 3 and found[0] not in (1, 3) and found[2] in (1, 3):
        return (found[2], found[0], found[1])
    return found


def shaped(x: NDArray[np.generic], shape: tuple[int, ...], source: str) -> NDArray[np.generic]:
    """Samples in the model's shape, where there is only one way to read them.

    The same shape but for axes of size 1; flat rows for a grey image, or the other way round; or an image with its
    channels last for one with its channels first.
    """
    found = x.shape[1:]
    if found == shape:
        return x
    if not _may_be(found, shape):
        raise DataError(f"{source} has samples of shape {found}, the model expects {shape}")
    same = [size for size in found if size != 1] == [size for size in shape if size != 1]
    return np.moveaxis(x, 3, 1) if not same and _channels_last(found, shape) else x.reshape(len(x), *shape)


def rows_in(x: NDArray[np.generic], shape: tuple[int, ...], source: str) -> tuple[NDArray[np.generic], bool]:
    """One sample or many as rows in the model's shape, and whether it was one: by the rules of files (`shaped`)."""
    if x.shape == shape:
        return x[np.newaxis], True
    for rows, one in ((x, False), (x[np.newaxis], True)):
        if rows.ndim and _may_be(rows.shape[1:], shape):
            return shaped(rows, shape, source), one
    raise DataError(
        f"{source}: samples of shape {shape} are expected, one or many of them, not an array of shape {x.shape}; a "
        "picture's channels may also stand last, and a grey one may be a row of numbers"
    )


def _may_be(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether there is one way to read samples of this shape as such of the model's."""
    ours, theirs = ([size for size in sizes if size != 1] for sizes in (found, shape))
    flat = min(len(ours), len(theirs)) <= 1 and max(len(ours), len(theirs)) <= 2
    return ours == theirs or (flat and prod(ours) == prod(theirs)) or _channels_last(found, shape)


def _channels_last(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(found) == len(shape) == 3 and (found[2], found[0], found[1]) == shape


def numeric(x: NDArray[np.generic], wanted: InputSpec, source: str) -> NDArray[np.generic]:
    """Samples that are numbers of the wanted kind, as compact as they are; float64 becomes float32."""
    if x.dtype.kind not in "buif" or (wanted.dtype == "int64" and x.dtype.kind == "f"):
        raise DataError(f"{source} has samples of type {x.dtype}, the model expects {wanted.dtype}")
    if x.dtype.kind == "f" and x.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            return x.astype(np.float32)
    return x


def _nothing(content: Content, form: Form, skipped: Sequence[str]) -> DataError:
    whence = [f"labels are taken from {content.labelled_by}"] if content.guessed else []
    reasons = f" ({'; '.join((*skipped, *whence))})" if skipped or whence else ""
    of = f" of the job's classes {shorten(form.classes)}" if not form.task else " that can be used"
    return DataError(f"{content.source} holds no sample{of}{reasons}")


def _finite(x: NDArray[np.generic]) -> NDArray[np.bool_]:
    finite = np.ones(len(x), dtype=np.bool_)
    if x.dtype.kind == "f":
        # Block by block: a mask of a whole data set would be a quarter of its size.
        for start in range(0, len(x), _BLOCK):
            block = x[start : start + _BLOCK]
            finite[start : start + _BLOCK] = np.isfinite(block).all(axis=tuple(range(1, block.ndim)))
    return finite
