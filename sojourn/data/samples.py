"""Conversion of file contents, including text, to the samples that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.data.labels import (
    FittedTargets,
    Labels,
    class_numbers,
    distinct,
    faults,
    is_whole,
    label_flags,
    next_tokens,
    quantities,
    shorten,
)
from sojourn.data.series import Cut, Series, as_series, forecast_windows, window_starts, windows
from sojourn.data.source import DataSettings, Form, Purpose
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec, TableSpec
from sojourn.protocol.task import TaskSpec

if TYPE_CHECKING:
    from sojourn.data.column_names import ColumnNames


_BLOCK = 1024


class DataWarning(NamedTuple):
    """A likely mistake in the data or its settings.

    what: a short text without values or names, which is safe to share; detail: more, only for the data's owner;
    remedy: what to do.
    """

    what: str
    detail: str
    remedy: str

    @property
    def text(self) -> str:
        """The whole warning, for the data's owner."""
        return f"{self.what} ({self.detail}); to do: {self.remedy}"


@dataclass(frozen=True)
class SampleForm:
    """The form of samples before a kit or card exists."""

    input: InputSpec
    classes: tuple[str, ...]
    task: TaskSpec | None = None
    table: TableSpec | None = None


@dataclass(frozen=True)
class Content:
    """The unprocessed content of a file or folder.

    labels: the distinct labels; label_index: the position of each sample's label in `labels`, or -1 without labels;
    names: the class names of integer labels. targets: the quantities to predict, a row for each sample; numeric labels
    are targets as well; target_names: the names of their columns. series: the order of the rows of x, if they are steps
    of series. table: the column names of a table, empty for a CSV file without a header. label_source: where the labels
    or targets come from, or why there are none ("no array 'y'"); guessed: whether neither the file nor its owner
    declared them.
    """

    source: str
    x: NDArray[np.generic]
    labels: Labels
    label_index: NDArray[np.int64]
    names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    label_source: str = ""
    guessed: bool = False
    warnings: tuple[DataWarning, ...] = ()
    targets: NDArray[np.generic] | None = None
    target_names: tuple[str, ...] = ()
    series: Series | None = None
    table: ColumnNames | None = None


@dataclass(frozen=True)
class Samples:
    """Samples for training or testing.

    x: the samples in the file's compact type; y: class numbers (N,), or targets in the task's shape as float32, or
    int64 for tokens; for a reconstruction, 1 for samples labelled as faulty and 0 otherwise. skipped: messages about
    skipped samples. kept: which samples of the content are included. machine: for windows of several series, the index
    of each sample's series in `machines`.
    """

    x: NDArray[np.generic]
    y: NDArray[Any]
    skipped: tuple[str, ...]
    kept: NDArray[np.bool_]
    machine: NDArray[np.int64] | None = None
    machines: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.y)

    def batch(self, index: NDArray[np.int64], dtype: str) -> tuple[NDArray[np.generic], NDArray[Any]]:
        """Return these samples in the graph's type."""
        return np.ascontiguousarray(self.x[index], dtype=dtype), self.y[index]


def content_of(
    x: NDArray[np.generic],
    y: NDArray[np.generic] | None,
    names: tuple[str, ...],
    source: str,
    label_source: str = "",
) -> Content:
    """Build a content from samples and optional labels or targets, a row for each sample; labels may be one column."""
    if y is None and x.ndim:
        return Content(source, x, (), no_labels(len(x)), names, label_source=label_source)
    y = np.array(None) if y is None else y
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    several = y.ndim > 1 and y.dtype.kind in "buif"
    if x.ndim < 1 or len(x) != len(y if y.ndim else ()) or (y.ndim != 1 and not several):
        raise DataError(f"{source}: x has the shape {x.shape} and y {y.shape}: one label for each sample is required")
    fractions = y.dtype.kind == "f" and not is_whole(y)
    labels, label_index = ((), no_labels(len(y))) if several or fractions else distinct(y, source)
    targets = y if y.dtype.kind in "buif" else None
    return Content(source, x, labels, label_index, names, label_source=label_source, targets=targets)


def no_labels(samples: int) -> NDArray[np.int64]:
    """Return the label index -1 for N samples, as a view that needs no memory."""
    return np.broadcast_to(np.int64(-1), samples)


def fit(content: Content, form: Form, part: Purpose = "train") -> Samples:
    """Return the samples of a job's classes or task, in the model's shape.

    Samples of other classes, or with NaN or infinity, are skipped and reported in `skipped`: one bad row does not
    invalidate a file. Labels are matched by name. A number without a class name is an error, and so are floats where
    integers are required.
    part: the purpose of the samples; only a test set keeps samples that are labelled as faulty.
    """
    source = content.source
    if not len(content.label_index):
        reasons = (
            *content.skipped,
            *(f"{each.what}: {each.detail}; to do: {each.remedy}" for each in content.warnings),
        )
        nothing = _no_samples_error(content, form, reasons)
        raise nothing if reasons else DataError(f"{source} has no samples")
    if form.task and form.task.kind in ("forecast", "tokens") and not _is_cut(content, form.input, form.task):
        return _cut(content, form.input, form.task)
    targets = _targets(content, form, part)
    listed, skipped = targets.keep, [*content.skipped, *targets.skipped]
    if not listed.any():
        raise _no_samples_error(content, form, skipped)
    x = shaped(numeric(content.x, form.input, source), form.input.shape, source)
    finite = finite_rows(x)
    if not finite[listed].all():
        skipped.append(f"{np.count_nonzero(~finite[listed])} samples with NaN or infinite values")
    keep = listed & finite
    if not keep.any():
        raise _no_samples_error(content, form, skipped)
    return Samples(x if keep.all() else x[keep], targets.y[keep], tuple(skipped), keep)


def _is_cut(content: Content, wanted: InputSpec, task: TaskSpec) -> bool:
    """Return whether the data is already split into windows in the model's shape, each with its target."""
    if content.targets is None or content.series is not None or task.target is None:
        return False
    found = content.x.shape[1:]
    same = wanted.shape in (found, (*found, 1))
    return same and prod(content.targets.shape[1:]) == prod(task.target.shape)


def _cut(content: Content, wanted: InputSpec, task: TaskSpec) -> Samples:
    """Cut overlapping windows from series, or consecutive ones from token sequences."""
    if task.kind == "tokens":
        found, skipped = token_windows(content, wanted, task), content.skipped
    else:
        known = content if content.series else as_series(content)
        known = replace(known, x=numeric(known.x, wanted, content.source))
        found, skipped = forecast_windows(known, wanted, task), known.skipped
    return Samples(found.x, found.y, skipped, np.ones(len(found.x), np.bool_), found.machine, found.machines)


def _targets(content: Content, form: Form, part: Purpose) -> FittedTargets:
    task = form.task
    if task is None or task.kind == "classification":
        return class_numbers(content, form.classes)
    match task.kind:
        case "regression" | "forecast":
            return quantities(content, task)
        case "tokens":
            return next_tokens(content, task)
        case "multilabel":
            return label_flags(content, form.classes)
        case "reconstruction":
            return faults(content, task, part)


def natural_shape(x: NDArray[np.generic], dtype: str) -> tuple[int, ...]:
    """Return the default input shape for these samples.

    Three axes are an image with its channels (1 or 3) first or last. Two axes are a grey image, or sequences for an
    embedding if the type is int64. A single number becomes a row of one.
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
    """Reshape samples to the model's shape if the conversion is unambiguous.

    Accepted are added or removed axes of size 1, flat rows for a grey image and the reverse, and images with their
    channels last.
    """
    found = x.shape[1:]
    if found == shape:
        return x
    if not _compatible(found, shape):
        raise DataError(f"{source} has samples of shape {found}, but the model expects {shape}")
    same = [size for size in found if size != 1] == [size for size in shape if size != 1]
    return np.moveaxis(x, 3, 1) if not same and _channels_last(found, shape) else x.reshape(len(x), *shape)


def rows_in(x: NDArray[np.generic], shape: tuple[int, ...], source: str) -> tuple[NDArray[np.generic], bool]:
    """Reshape one sample or a batch as `shaped` does; also return whether it was a single sample."""
    if x.shape == shape:
        return x[np.newaxis], True
    for rows, one in ((x, False), (x[np.newaxis], True)):
        if rows.ndim and _compatible(rows.shape[1:], shape):
            return shaped(rows, shape, source), one
    raise DataError(
        f"{source} has the shape {x.shape}; expected one or more samples of shape {shape}. The channels of an image "
        "may be first or last, and a grey image may be a flat row"
    )


def _compatible(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether samples of one shape convert unambiguously to the other."""
    ours, theirs = ([size for size in sizes if size != 1] for sizes in (found, shape))
    flat = min(len(ours), len(theirs)) <= 1 and max(len(ours), len(theirs)) <= 2
    return ours == theirs or (flat and prod(ours) == prod(theirs)) or _channels_last(found, shape)


def _channels_last(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(found) == len(shape) == 3 and (found[2], found[0], found[1]) == shape


def numeric(x: NDArray[np.generic], wanted: InputSpec, source: str) -> NDArray[np.generic]:
    """Check that samples are numbers of the wanted kind; convert float64 to float32, and keep compact types."""
    if x.dtype.kind not in "buif" or (wanted.dtype == "int64" and x.dtype.kind == "f"):
        raise DataError(f"{source} has samples of type {x.dtype}, but the model expects {wanted.dtype}")
    if x.dtype.kind == "f" and x.dtype.itemsize > 4:
        with np.errstate(over="ignore"):
            return x.astype(np.float32)
    return x


def _no_samples_error(content: Content, form: Form, skipped: Sequence[str]) -> DataError:
    origin = [f"labels are taken from {content.label_source}"] if content.guessed else []
    reasons = f" ({'; '.join((*skipped, *origin))})" if skipped or origin else ""
    of = f" of the job's classes {shorten(form.classes)}" if not form.task else " that can be used"
    return DataError(f"{content.source} has no sample{of}{reasons}")


def finite_rows(x: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Return which samples have only finite values."""
    finite = np.ones(len(x), dtype=np.bool_)
    if x.dtype.kind == "f":
        # Block by block: a mask of a whole dataset would take a quarter of its size.
        for start in range(0, len(x), _BLOCK):
            block = x[start : start + _BLOCK]
            finite[start : start + _BLOCK] = np.isfinite(block).all(axis=tuple(range(1, block.ndim)))
    return finite


SUFFIX = ".txt"
UNLABELLED = "text without labels"
_TOKEN_BLOCK = 1 << 20


def read_text(settings: DataSettings) -> Content:
    """Read the bytes of a text file, or of all text files in a folder and its subfolders, each as one sequence."""
    root = Path(settings.path)
    try:
        paths = sorted(path for path in root.rglob(f"*{SUFFIX}") if path.is_file()) if root.is_dir() else [root]
        sizes = [path.stat().st_size for path in paths]
        parts = [np.memmap(path, np.uint8, "r") for path, size in zip(paths, sizes, strict=True) if size]
    except (OSError, ValueError) as error:
        raise DataError(f"{root} cannot be read: {error}") from error
    if not parts:
        raise DataError(f"{root} has no text: add non-empty {SUFFIX} files")
    # A single file stays memory-mapped: only the parts used for training are loaded.
    x = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return replace(_sequences(x, [len(part) for part in parts], str(root)), label_source=UNLABELLED)


def token_windows(content: Content, wanted: InputSpec, task: TaskSpec) -> Cut:
    """Return sequences of the model's length, and the same sequences shifted by one token."""
    if len(wanted.shape) != 1:
        raise DataError(f"{content.source}: a token model takes sequences, but its input has the shape {wanted.shape}")
    length, source = wanted.shape[0], content.source
    found = content if content.series else _from_array(content)
    tokens, series = whole_numbers(found.x, source), found.series
    _check_vocabulary(tokens, task.output[-1] if task.output else 0, source)
    if series is None or not len(starts := window_starts(series.pieces, length + 1, length)):
        longest = series.longest if series else 0
        raise DataError(
            f"{source}: its longest sequence has {longest:,} tokens, but the model needs {length:,} and the next one"
        )
    x, y = (windows(tokens, starts + at, length, (length,), np.int64) for at in (0, 1))
    machine = np.searchsorted(series.pieces[:, 0], starts, side="right") - 1
    return Cut(x, y, machine, series.machines)


def whole_numbers(x: NDArray[np.generic], source: str) -> NDArray[np.generic]:
    """Return integers, converted from floats if these have no fractions."""
    if x.dtype.kind in "bui":
        return x
    if x.dtype.kind == "f" and np.array_equal(x, np.floor(x)) and np.isfinite(x).all() and np.abs(x).max() < 1 << 24:
        return x.astype(np.int64)
    raise DataError(f"{source} has values of type {x.dtype} that are not whole numbers: tokens must be whole numbers")


def _from_array(content: Content) -> Content:
    x = content.x
    if x.ndim not in (1, 2):
        raise DataError(
            f"{content.source} has an array of shape {x.shape}: tokens must be one long sequence, or rows of equal "
            "length"
        )
    lengths = [len(x)] if x.ndim == 1 else [x.shape[1]] * len(x)
    return _sequences(x.reshape(-1), lengths, content.source)


def _sequences(x: NDArray[np.generic], lengths: list[int], source: str) -> Content:
    ends = np.cumsum(lengths, dtype=np.int64)
    pieces = np.stack([ends - np.array(lengths, np.int64), ends], axis=1)
    series = Series(pieces, np.arange(len(lengths)), tuple(str(at) for at in range(len(lengths))))
    return Content(source, x, (), no_labels(len(x)), series=series)


def _check_vocabulary(tokens: NDArray[np.generic], size: int, source: str) -> None:
    for at in range(0, len(tokens), _TOKEN_BLOCK):
        block = tokens[at : at + _TOKEN_BLOCK]
        low, high = int(block.min()), int(block.max())
        if low < 0 or high >= size:
            raise DataError(
                f"{source} has the token {low if low < 0 else high}, but the job's vocabulary ranges from 0 to "
                f"{size - 1}"
            )
