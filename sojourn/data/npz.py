"""NPZ files: one array of samples, one of labels, and perhaps one of class names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.npz_arrays import array_of, open_npz
from sojourn.data.samples import Content
from sojourn.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.npz_arrays import Arrays
    from sojourn.data.source import DataSettings

_PAIRS = (("x", "y"), ("x_train", "y_train"))
_NAMES = ("classes", "class_names")
_ADVICE = "set `x` and `y` to those with the samples and the labels"


def read_npz(settings: DataSettings) -> Content:
    """What an NPZ file holds; pickled objects are never loaded."""
    with open_npz(settings.path) as file:
        x_key, y_key = _keys(settings, file)
        x, y = (array_of(settings.path, file, key, _ADVICE) for key in (x_key, y_key))
        names = next((_texts(file[key], settings.path) for key in _NAMES if key in file), ())
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{settings.path}: {x_key!r} has shape {x.shape} and {y_key!r} {y.shape}, not one label each")
    labels, which = _distinct(y, settings.path)
    return Content(x, labels, which, names)


def _keys(settings: DataSettings, file: Arrays) -> tuple[str, str]:
    default = next((pair for pair in _PAIRS if set(pair) <= set(file)), _PAIRS[0])
    return settings.x or default[0], settings.y or default[1]


def _distinct(y: NDArray[np.generic], source: str) -> tuple[tuple[str | int, ...], NDArray[np.int64]]:
    values, which = np.unique(y, return_inverse=True)
    if values.dtype.kind in "US":
        return _texts(values, source), which
    if values.dtype.kind == "f" and np.array_equal(values, np.floor(values)):
        values = values.astype(np.int64)
    if values.dtype.kind not in "iu":
        raise DataError(f"{source} has labels of type {y.dtype}: they must be names or whole numbers")
    return tuple(int(value) for value in values), which


def _texts(values: NDArray[np.generic], source: str) -> tuple[str, ...]:
    if values.dtype.kind == "S":
        values = np.char.decode(values.astype(np.bytes_), "utf-8")
    if values.dtype.kind != "U":
        raise DataError(f"{source} has class names of type {values.dtype}: they must be text")
    return tuple(str(value) for value in values.ravel())
