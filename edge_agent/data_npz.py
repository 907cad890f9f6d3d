"""NPZ files: one array of samples, one of labels, and perhaps one of class names."""

from __future__ import annotations

import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np

from edge_agent.data_samples import Content
from sojourn.errors import DataError

if TYPE_CHECKING:
    from numpy.lib.npyio import NpzFile
    from numpy.typing import NDArray

    from edge_agent.data import DataSettings

_PAIRS = (("x", "y"), ("x_train", "y_train"))
_NAMES = ("classes", "class_names")


def read_npz(settings: DataSettings) -> Content:
    """What an NPZ file holds; pickled objects are never loaded."""
    try:
        content = np.load(settings.path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DataError(f"{settings.path} is a single array: an NPZ file with samples and labels is needed")
        with content as file:
            x_key, y_key = _keys(settings, file)
            x, y = file[x_key], file[y_key]
            names = next((_texts(file[key], settings.path) for key in _NAMES if key in file.files), ())
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{settings.path} cannot be read as NPZ: {error or type(error).__name__}") from error
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim < 1 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{settings.path}: {x_key!r} has shape {x.shape} and {y_key!r} {y.shape}, not one label each")
    labels, which = _distinct(y, settings.path)
    return Content(x, labels, which, names)


def _keys(settings: DataSettings, file: NpzFile) -> tuple[str, str]:
    default = next((pair for pair in _PAIRS if set(pair) <= set(file.files)), _PAIRS[0])
    keys = settings.x or default[0], settings.y or default[1]
    for key in keys:
        if key not in file.files:
            raise DataError(f"{settings.path} has no array {key!r}, only {', '.join(file.files) or 'none at all'}")
    return keys


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
