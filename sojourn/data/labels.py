"""Labels and targets: class names, and the target array for each kind of task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sojourn.data.source import Purpose
from sojourn.errors import DataError
from sojourn.protocol.task import TaskSpec

if TYPE_CHECKING:
    from sojourn.data.samples import Content


Labels = tuple[str | int, ...]
MAX_LISTED = 10
"""Messages list at most this many names or skipped items and count the rest."""
_MAX_DIGITS = 4000
"""Python refuses to convert longer digit strings."""
CLASSIFIER_HINT = (
    'The job is a classifier: to predict the quantity itself, set [task] kind = "regression"; or put it into bins and '
    "give each bin a name, such as low and high"
)
"""A hint for users whose labels are quantities."""


def is_whole(values: NDArray[np.generic]) -> bool:
    """Return whether these are floats without fractions, as some programs write integers."""
    return values.dtype.kind == "f" and bool(np.isfinite(values).all()) and np.array_equal(values, np.floor(values))


def distinct(y: NDArray[np.generic], source: str) -> tuple[Labels, NDArray[np.int64]]:
    """Return the distinct labels and the label index of each sample.

    Labels are text, bytes (UTF-8), whole numbers, floats that are whole, or booleans, which mean 0 and 1.
    """
    values, label_index = np.unique(y, return_inverse=True)
    if values.dtype.kind in "US":
        return texts(values, source), label_index
    whole = is_whole(values)
    if not whole and values.dtype.kind not in "biu":
        parts = values[values != np.floor(values)] if values.dtype.kind == "f" else values[:0]
        such = f" such as {parts[0]:.6g}" if len(parts) else ""
        raise DataError(
            f"{source} has labels of type {y.dtype}{such}: they must be names or whole numbers. {CLASSIFIER_HINT}"
        )
    return tuple(int(value) for value in values), label_index


def texts(values: NDArray[np.generic], source: str) -> tuple[str, ...]:
    """Convert an array of text or bytes to names."""
    if values.dtype.kind == "S":
        values = np.char.decode(values.astype(np.bytes_), "utf-8")
    if values.dtype.kind != "U":
        raise DataError(f"{source} has class names of type {values.dtype}: they must be text")
    return tuple(str(value) for value in values.ravel())


def named(labels: Sequence[str | int], names: Sequence[str], classes: Sequence[str], source: str) -> list[str]:
    """Return the name of each label; an integer is an index into `names`, or without names its own name."""
    numbers = [label for label in labels if isinstance(label, int)]
    wrong = next((label for label in numbers if names and not 0 <= label < len(names)), None)
    if wrong is not None:
        raise DataError(f"{source} has the label {wrong}, but only {len(names)} class names are given")
    if numbers and not names and not any(_is_integer(name) for name in classes):
        raise DataError(
            f"{source} has integer labels such as {numbers[0]}, but the job's classes are {shorten(classes)}: "
            "name the integers with `class_names` in the data settings, or with an array `classes` in the NPZ file"
        )
    return [label if isinstance(label, str) else names[label] if names else str(label) for label in labels]


def label_name(label: str | int, names: Sequence[str]) -> str:
    """Return the class name of a label; an integer without a name stays a number, which jobs reject."""
    return names[label] if isinstance(label, int) and 0 <= label < len(names) else str(label)


def classes_of(contents: Sequence[Content]) -> tuple[str, ...]:
    """Return the classes if the job does not list them: the first file's class names, or the labels of all files.

    Numbers come first, by value, whether they are stored as numbers or as text.
    """
    names = next((content.names for content in contents if content.names), ())
    if not names:
        return tuple(sorted({str(label) for content in contents for label in content.labels}, key=by_number))
    first = contents[0]
    if len(set(names)) != len(names):
        raise DataError(f"{first.source} has duplicate class names")
    for content in contents:
        unknown = [label for label in content.labels if isinstance(label, str) and label not in names]
        if unknown:
            raise DataError(f"{content.source}: the label {unknown[0]!r} is not one of its classes {', '.join(names)}")
    return names


def shorten(names: Iterable[str]) -> str:
    """Join the first names, and count the rest."""
    every = [repr(name[:80]) for name in names]
    more = len(every) - MAX_LISTED
    return ", ".join(every[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def by_number(name: str) -> tuple[bool, int, str]:
    """Sort key of class names: numbers by value, then the others."""
    return (False, int(name), name) if _is_integer(name) else (True, 0, name)


def _is_integer(name: str) -> bool:
    return len(name) < _MAX_DIGITS and name.removeprefix("-").isdecimal()


SEPARATORS = re.compile(r"[;|]")
"""Separators between the labels of a sample."""
NO_LABELS = "no labels"
"""The label source of data without labels."""


class FittedTargets(NamedTuple):
    """The target of each sample, the mask of usable samples, and messages about the skipped ones."""

    y: NDArray[Any]
    keep: NDArray[np.bool_]
    skipped: tuple[str, ...] = ()


def class_numbers(content: Content, classes: tuple[str, ...]) -> FittedTargets:
    """Return the class number of each sample in the job's list; labels are matched by name."""
    if not content.labels and content.targets is not None and len(content.label_index):
        raise _no_classes(content, content.targets)
    if not content.labels and len(content.label_index):
        raise DataError(f"{content.source} has {content.label_source or NO_LABELS}")
    names = named(content.labels, content.names, classes, content.source)
    number = {name: at for at, name in enumerate(classes)}
    y = np.array([number.get(name, -1) for name in names], dtype=np.int64)[content.label_index]
    listed = y >= 0
    if listed.all():
        return FittedTargets(y, listed)
    absent = shorten(name for name in names if name not in number)
    return FittedTargets(
        y, listed, (f"{np.count_nonzero(~listed)} samples of classes that the job does not list: {absent}",)
    )


def quantities(content: Content, task: TaskSpec) -> FittedTargets:
    """Return the quantities to predict, as float32 in the task's shape."""
    found = _numbers(content, task)
    found = found.reshape(len(found), 1) if found.ndim == 1 else found
    if found.ndim == 2 and found.shape[1] == len(content.target_names) and set(task.names) <= set(content.target_names):
        found = found[:, [content.target_names.index(name) for name in task.names]] if task.names else found
    wanted = task.target.shape if task.target else found.shape[1:]
    if prod(found.shape[1:]) != prod(wanted) or not prod(wanted):
        raise DataError(
            f"{content.source} has targets of {prod(found.shape[1:])} numbers ({_target_source(content)}), but the job "
            f"predicts {_expected(task, prod(wanted))}: set these with data.targets, in that order"
        )
    with np.errstate(over="ignore"):
        y = found.reshape(len(found), *wanted).astype(np.float32)
    whole = np.asarray(np.isfinite(y.reshape(len(y), -1)).all(axis=1))
    missing = np.count_nonzero(~whole)
    return FittedTargets(y, whole, (f"{missing} samples whose target is missing, NaN or infinite",) if missing else ())


def next_tokens(content: Content, task: TaskSpec) -> FittedTargets:
    """Return the next tokens of data that is already split into sequences."""
    found = np.asarray(content.targets)
    size = task.output[-1]
    for tokens in (found, content.x):
        if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= size:
            raise DataError(f"{content.source} has tokens that are not whole numbers from 0 to {size - 1}")
    return FittedTargets(found.astype(np.int64), np.ones(len(found), np.bool_))


def label_flags(content: Content, classes: tuple[str, ...]) -> FittedTargets:
    """Return 0 or 1 for each sample and each of the job's labels."""
    keep = np.ones(len(content.x), np.bool_)
    if content.labels and not (content.targets is not None and content.targets.ndim > 1):
        return _flags_of_names(content, classes, keep)
    if content.targets is None:
        raise DataError(
            f"{content.source} has {content.label_source or NO_LABELS}; add a column of 0 and 1 for each of "
            f"{shorten(classes)}, or one column with the names that apply, such as 'a;b'"
        )
    found = content.targets.reshape(len(content.targets), -1)
    found = found[:, _places(content.target_names or content.names, classes, found.shape[1], content)]
    flags = found.astype(np.float32)
    whole = np.asarray(np.isfinite(flags).all(axis=1))
    if not np.isin(flags[whole], (0.0, 1.0)).all():
        odd = flags[whole][~np.isin(flags[whole], (0.0, 1.0))][0]
        raise DataError(f"{content.source} has the label flag {odd:g}; expected 0 or 1")
    missing = np.count_nonzero(~whole)
    return FittedTargets(flags, whole, (f"{missing} samples with a missing label",) if missing else ())


def faults(content: Content, task: TaskSpec, part: Purpose) -> FittedTargets:
    """Return 1 for samples that are labelled as faulty; they are not used for training."""
    y = np.zeros(len(content.x), np.int64)
    keep = np.ones(len(y), np.bool_)
    if not content.labels or not task.normal:
        return FittedTargets(y, keep)
    normal = {"", *(word.casefold() for word in task.normal)}  # unlabelled samples count as normal
    names = [label_name(label, content.names) for label in content.labels]
    faulty = np.array([name.casefold() not in normal for name in names])[content.label_index]
    y[faulty] = 1
    if part == "test" or not faulty.any():
        return FittedTargets(y, keep)
    if faulty.all():
        raise DataError(
            f"{content.source} has no sample that is labelled as normal, only {shorten(names)}; the job's name for "
            f"normal is {shorten(task.normal)}: rename the labels, or exclude the label column (data.ignore)"
        )
    odd = shorten(name for name in names if name.casefold() not in normal)
    return FittedTargets(y, ~faulty, (f"{np.count_nonzero(faulty)} samples labelled as faulty: {odd}",))


def label_names(content: Content) -> tuple[str, ...]:
    """Return the label names of multilabel data if the job does not list them."""
    if content.targets is not None and content.targets.ndim > 1:
        names = content.target_names or content.names
        return names or tuple(str(at) for at in range(content.targets.shape[1]))
    found = {part for label in content.labels for part in _split_names(label_name(label, content.names))}
    return tuple(sorted(found))


def _no_classes(content: Content, targets: NDArray[np.generic]) -> DataError:
    if targets.ndim == 1:
        try:
            distinct(targets, content.source)
        except DataError as error:
            return error
    x, y = content.x.shape, targets.shape
    return DataError(f"{content.source}: x has the shape {x} and y {y}, not one label for each sample")


def _numbers(content: Content, task: TaskSpec) -> NDArray[np.generic]:
    if content.targets is not None and content.targets.dtype.kind in "buif":
        return content.targets
    wanted = _expected(task, prod(task.target.shape) if task.target else 1)
    if content.labels:
        text = next((label for label in content.labels if isinstance(label, str)), content.labels[0])
        raise DataError(
            f"{content.source} has labels such as {str(text)[:80]!r} ({content.label_source}), but the job predicts "
            f"{wanted}: set the columns with these numbers with data.targets"
        )
    raise DataError(
        f"{content.source} has {content.label_source or NO_LABELS}. The job predicts {wanted}: put them into the array "
        "y of an NPZ file, or into columns of a CSV file that data.targets lists"
    )


def _expected(task: TaskSpec, count: int) -> str:
    return shorten(task.names) if task.names else f"{count} number{'s' * (count != 1)} for each sample"


def _target_source(content: Content) -> str:
    return shorten(content.target_names) if content.target_names else content.label_source or "unnamed"


def _flags_of_names(content: Content, classes: tuple[str, ...], keep: NDArray[np.bool_]) -> FittedTargets:
    place = {name: at for at, name in enumerate(classes)}
    table = np.zeros((len(content.labels), len(classes)), np.float32)
    unknown = list[str]()
    for row, label in enumerate(content.labels):
        for part in _split_names(label_name(label, content.names)):
            if part in place:
                table[row, place[part]] = 1.0
            else:
                unknown.append(part)
    message = f"labels that the job does not list: {shorten(dict.fromkeys(unknown))}"
    return FittedTargets(table[content.label_index], keep, (message,) if unknown else ())


def _split_names(text: str) -> list[str]:
    return [part.strip() for part in SEPARATORS.split(text) if part.strip()]


def _places(names: Sequence[str], classes: tuple[str, ...], columns: int, content: Content) -> list[int]:
    """Return the column of each label, by name if columns have names, otherwise in the job's order."""
    if len(names) == columns:
        if absent := [name for name in classes if name not in names]:
            raise DataError(f"{content.source} has no label {shorten(absent)}, only {shorten(names)}")
        return [list(names).index(name) for name in classes]
    if columns != len(classes):
        raise DataError(
            f"{content.source} has {columns} columns of labels, but the job has {len(classes)}: {shorten(classes)}; "
            "name them with data.class_names"
        )
    return list(range(columns))
