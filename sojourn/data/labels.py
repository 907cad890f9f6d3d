"""Labels and class names: what the labels of a file mean, and which classes there are where nobody lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from sojourn.data.samples import Content

Labels = tuple[str | int, ...]
NAMED = 10
"""How many names or skipped things are written out before the rest is only counted."""
_DIGITS = 4000
"""Of more digits Python makes no number."""
CLASSIFIES = (
    'This is for a classifier: a job that predicts the quantity itself says [task] kind = "regression"; or put it into '
    "bins and give each bin a name, such as low and high"
)
"""What to tell who wants another kind of answer than a class."""


def is_whole(values: NDArray[np.generic]) -> bool:
    """Whether these are floats without a fraction, as some programs write whole numbers."""
    return values.dtype.kind == "f" and bool(np.isfinite(values).all()) and np.array_equal(values, np.floor(values))


def distinct(y: NDArray[np.generic], source: str) -> tuple[Labels, NDArray[np.int64]]:
    """The distinct labels, and which of them each sample has.

    Labels are text, bytes (UTF-8), whole numbers, floats that are whole, or booleans, which mean 0 and 1.
    """
    values, which = np.unique(y, return_inverse=True)
    if values.dtype.kind in "US":
        return texts(values, source), which
    whole = is_whole(values)
    if not whole and values.dtype.kind not in "biu":
        parts = values[values != np.floor(values)] if values.dtype.kind == "f" else values[:0]
        such = f" such as {parts[0]:.6g}" if len(parts) else ""
        raise DataError(
            f"{source} has labels of type {y.dtype}{such}: they must be names or whole numbers. {CLASSIFIES}"
        )
    return tuple(int(value) for value in values), which


def texts(values: NDArray[np.generic], source: str) -> tuple[str, ...]:
    """An array of text or bytes as names."""
    if values.dtype.kind == "S":
        values = np.char.decode(values.astype(np.bytes_), "utf-8")
    if values.dtype.kind != "U":
        raise DataError(f"{source} has class names of type {values.dtype}: they must be text")
    return tuple(str(value) for value in values.ravel())


def named(labels: Sequence[str | int], names: Sequence[str], classes: Sequence[str], source: str) -> list[str]:
    """The name of each label. An integer means what `names` says, or is its own name: never a place in the job."""
    numbers = [label for label in labels if isinstance(label, int)]
    wrong = next((label for label in numbers if names and not 0 <= label < len(names)), None)
    if wrong is not None:
        raise DataError(f"{source} has the label {wrong}, but only {len(names)} class names are given")
    if numbers and not names and not any(_is_number(name) for name in classes):
        raise DataError(
            f"{source} has integer labels such as {numbers[0]}, and the job's classes are {shorten(classes)}: say what "
            "the integers mean with `class_names` in the data settings, or with an array `classes` in the NPZ file"
        )
    return [label if isinstance(label, str) else names[label] if names else str(label) for label in labels]


def classes_of(contents: Sequence[Content]) -> tuple[str, ...]:
    """The classes where nobody lists them: the first file's own names, or else the labels of all files.

    Labels that are numbers come first and by their value, whether they are stored as numbers or as text.
    """
    names = next((content.names for content in contents if content.names), ())
    if not names:
        return tuple(sorted({str(label) for content in contents for label in content.labels}, key=by_number))
    first = contents[0]
    if len(set(names)) != len(names):
        raise DataError(f"{first.source}: its class names are not all different")
    for content in contents:
        unknown = [label for label in content.labels if isinstance(label, str) and label not in names]
        if unknown:
            raise DataError(f"{content.source}: the label {unknown[0]!r} is none of its classes {', '.join(names)}")
    return names


def shorten(names: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    every = [repr(name[:80]) for name in names]
    more = len(every) - NAMED
    return ", ".join(every[:NAMED]) + (f" and {more} more" if more > 0 else "")


def by_number(name: str) -> tuple[bool, int, str]:
    """The order of classes that nobody has put in one: numbers by their value, then the others."""
    return (False, int(name), name) if _is_number(name) else (True, 0, name)


def _is_number(name: str) -> bool:
    return len(name) < _DIGITS and name.removeprefix("-").isdecimal()
