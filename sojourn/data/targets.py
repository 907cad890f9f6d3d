"""What samples are compared with: class numbers, quantities, the labels that hold, or whether a sample is faulty."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn.data.labels import distinct, named, shorten
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from sojourn.data.samples import Content
    from sojourn.data.source import Purpose
    from sojourn.protocol.task import TaskSpec

SEPARATORS = re.compile(r"[;|]")
"""Between the labels of a sample that has several."""
NO_LABELS = "no labels"
"""What is said of data without labels, where nothing better is known."""


class FittedTargets(NamedTuple):
    """What each sample is compared with, which of them may stay, and what is told of the others."""

    y: NDArray[Any]
    keep: NDArray[np.bool_]
    skipped: tuple[str, ...] = ()


def class_numbers(content: Content, classes: tuple[str, ...]) -> FittedTargets:
    """The place of each sample's class in the job's list; labels are compared by name."""
    if not content.labels and content.targets is not None and len(content.which):
        raise _no_classes(content, content.targets)
    if not content.labels and len(content.which):
        raise DataError(f"{content.source} has {content.labelled_by or NO_LABELS}")
    names = named(content.labels, content.names, classes, content.source)
    number = {name: at for at, name in enumerate(classes)}
    y = np.array([number.get(name, -1) for name in names], dtype=np.int64)[content.which]
    listed = y >= 0
    if listed.all():
        return FittedTargets(y, listed)
    absent = shorten(name for name in names if name not in number)
    return FittedTargets(
        y, listed, (f"{np.count_nonzero(~listed)} samples of classes that the job does not list: {absent}",)
    )


def quantities(content: Content, task: TaskSpec) -> FittedTargets:
    """The numbers that are to be predicted, as float32 in the task's shape."""
    found = _numbers(content, task)
    found = found.reshape(len(found), 1) if found.ndim == 1 else found
    if found.ndim == 2 and found.shape[1] == len(content.target_names) and set(task.names) <= set(content.target_names):
        found = found[:, [content.target_names.index(name) for name in task.names]] if task.names else found
    wanted = task.target.shape if task.target else found.shape[1:]
    if prod(found.shape[1:]) != prod(wanted) or not prod(wanted):
        raise DataError(
            f"{content.source} has targets of {prod(found.shape[1:])} numbers ({_whence(content)}), and the job "
            f"predicts {_wanted(task, prod(wanted))}: name these with data.targets, in that order"
        )
    with np.errstate(over="ignore"):
        y = found.reshape(len(found), *wanted).astype(np.float32)
    whole = np.asarray(np.isfinite(y.reshape(len(y), -1)).all(axis=1))
    missing = np.count_nonzero(~whole)
    return FittedTargets(y, whole, (f"{missing} samples whose target is missing, NaN or infinite",) if missing else ())


def next_tokens(content: Content, task: TaskSpec) -> FittedTargets:
    """The token that comes next at each place, where somebody has cut the sequences already."""
    found = np.asarray(content.targets)
    size = task.output[-1]
    for tokens in (found, content.x):
        if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= size:
            raise DataError(f"{content.source} has tokens that are no whole numbers from 0 to {size - 1}")
    return FittedTargets(found.astype(np.int64), np.ones(len(found), np.bool_))


def label_flags(content: Content, classes: tuple[str, ...]) -> FittedTargets:
    """For each of the job's labels whether a sample has it, as 0 or 1."""
    keep = np.ones(len(content.x), np.bool_)
    if content.labels and not (content.targets is not None and content.targets.ndim > 1):
        return _flags_of_names(content, classes, keep)
    if content.targets is None:
        raise DataError(
            f"{content.source} has {content.labelled_by or NO_LABELS}; give a column of 0 and 1 for each of "
            f"{shorten(classes)}, or one with the names that hold, such as 'a;b'"
        )
    found = content.targets.reshape(len(content.targets), -1)
    found = found[:, _places(content.target_names or content.names, classes, found.shape[1], content)]
    flags = found.astype(np.float32)
    whole = np.asarray(np.isfinite(flags).all(axis=1))
    if not np.isin(flags[whole], (0.0, 1.0)).all():
        odd = flags[whole][~np.isin(flags[whole], (0.0, 1.0))][0]
        raise DataError(f"{content.source} has {odd:g} where 0 or 1 is expected, whether a sample has a label")
    missing = np.count_nonzero(~whole)
    return FittedTargets(flags, whole, (f"{missing} samples of which a label is missing",) if missing else ())


def faults(content: Content, task: TaskSpec, part: Purpose) -> FittedTargets:
    """1 where a label says that a sample is not as it should be; these are not trained on."""
    y = np.zeros(len(content.x), np.int64)
    keep = np.ones(len(y), np.bool_)
    if not content.labels or not task.normal:
        return FittedTargets(y, keep)
    normal = {"", *(word.casefold() for word in task.normal)}  # nobody has said that what has no label is faulty
    names = [_name(label, content.names) for label in content.labels]
    faulty = np.array([name.casefold() not in normal for name in names])[content.which]
    y[faulty] = 1
    if part == "test" or not faulty.any():
        return FittedTargets(y, keep)
    if faulty.all():
        raise DataError(
            f"{content.source} holds no sample that is labelled as normal, only {shorten(names)}; the job's word is "
            f"{shorten(task.normal)}: label these so, or take the labels out (data.ignore)"
        )
    odd = shorten(name for name in names if name.casefold() not in normal)
    return FittedTargets(y, ~faulty, (f"{np.count_nonzero(faulty)} samples that are labelled as faulty: {odd}",))


def label_names(content: Content) -> tuple[str, ...]:
    """The labels of a content whose samples may have several, where nobody lists them."""
    if content.targets is not None and content.targets.ndim > 1:
        names = content.target_names or content.names
        return names or tuple(str(at) for at in range(content.targets.shape[1]))
    found = {part for label in content.labels for part in _parts(_name(label, content.names))}
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
    wanted = _wanted(task, prod(task.target.shape) if task.target else 1)
    if content.labels:
        text = next((label for label in content.labels if isinstance(label, str)), content.labels[0])
        raise DataError(
            f"{content.source} has labels such as {str(text)[:80]!r} ({content.labelled_by}), and the job predicts "
            f"{wanted}: name the columns with these numbers with data.targets"
        )
    raise DataError(
        f"{content.source} has {content.labelled_by or NO_LABELS}. The job predicts {wanted}: put it into the array y "
        "of an NPZ file, or into columns of a CSV file that data.targets names"
    )


def _wanted(task: TaskSpec, count: int) -> str:
    return shorten(task.names) if task.names else f"{count} number{'s' * (count != 1)} for each sample"


def _whence(content: Content) -> str:
    return shorten(content.target_names) if content.target_names else content.labelled_by or "of no name"


def _flags_of_names(content: Content, classes: tuple[str, ...], keep: NDArray[np.bool_]) -> FittedTargets:
    place = {name: at for at, name in enumerate(classes)}
    table = np.zeros((len(content.labels), len(classes)), np.float32)
    unknown = list[str]()
    for row, label in enumerate(content.labels):
        for part in _parts(_name(label, content.names)):
            if part in place:
                table[row, place[part]] = 1.0
            else:
                unknown.append(part)
    told = f"labels that the job does not list: {shorten(dict.fromkeys(unknown))}"
    return FittedTargets(table[content.which], keep, (told,) if unknown else ())


def _parts(text: str) -> list[str]:
    return [part.strip() for part in SEPARATORS.split(text) if part.strip()]


def _name(label: str | int, names: Sequence[str]) -> str:
    if isinstance(label, int) and 0 <= label < len(names):
        return names[label]
    return str(label)


def _places(names: Sequence[str], classes: tuple[str, ...], columns: int, content: Content) -> list[int]:
    """Where the column of each label stands: by its name where columns have names, else in the job's order."""
    if len(names) == columns:
        if absent := [name for name in classes if name not in names]:
            raise DataError(f"{content.source} has no label {shorten(absent)}, only {shorten(names)}")
        return [list(names).index(name) for name in classes]
    if columns != len(classes):
        raise DataError(
            f"{content.source} has {columns} columns of labels, and the job {len(classes)}: {shorten(classes)}; say "
            "which they are with data.class_names"
        )
    return list(range(columns))
