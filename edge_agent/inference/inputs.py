"""What a person gives to predict from: an image, an NPZ or NPY file, a CSV file, or the body of a request."""

from __future__ import annotations

import io
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy

from sojourn.data.npz import read_rows
from sojourn.data.samples import rows_in
from sojourn.data.source import DataSettings, on_scale
from sojourn.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.source import Form

_MOST_PIXELS = 16_000_000
"""Decoded at once on behalf of others."""


def read_inputs(settings: DataSettings, form: Form) -> tuple[NDArray[np.generic], bool]:
    """The rows in a file, in the model's shape and on the scale that is asked for, and whether it is one image."""
    path, one = settings.path, False
    found: NDArray[np.generic]
    match Path(path).suffix.lower():
        case ".csv":
            found = _of_csv_file(settings, form)
        case ".npz":
            found = read_rows(path)
        case ".npy":
            try:
                found = of_npy(Path(path).read_bytes(), path)
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
        case _:
            from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

            found, one = read_image(Path(path), form, path), True
    rows, single = _rows_in(found, form, path)
    return on_scale(rows, settings), one or single


def rows_of(x: object, form: Form, source: str) -> tuple[NDArray[np.generic], bool]:
    """What a program gives as rows in the model's shape, and whether it is one sample.

    An array or lists of numbers; the path of a file that `sojourn agent predict` reads; or several paths.
    """
    if isinstance(x, str | Path):
        return read_inputs(DataSettings(path=str(x)), form)
    if isinstance(x, list | tuple) and x and all(isinstance(each, str | Path) for each in x):
        return np.concatenate([read_inputs(DataSettings(path=str(each)), form)[0] for each in x]), False
    try:
        given = np.asarray(x)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"this is no array of numbers: {error}") from error
    return _rows_in(given, form, source)


def _rows_in(found: NDArray[np.generic], form: Form, source: str) -> tuple[NDArray[np.generic], bool]:
    """Rows in the model's shape, and whether it is one sample: of a series that is longer its newest part is one."""
    shape, kind = form.input.shape, form.task.kind if form.task else "classification"
    if kind == "forecast" and found.ndim and found.ndim <= 2 and found.shape != shape:
        series = found.reshape(len(found), -1)
        if series.shape[1] == prod(shape[1:]):
            if len(series) < shape[0]:
                raise DataError(f"{source} has {len(series)} steps: the model looks at the newest {shape[0]}")
            return series[-shape[0] :].reshape(1, *shape), True
    if kind == "tokens" and found.ndim == 1 and len(found) > prod(shape):
        return found[-prod(shape) :].reshape(1, *shape), True
    return rows_in(found, shape, source)


def _of_csv_file(settings: DataSettings, form: Form) -> NDArray[np.generic]:
    """The rows of a CSV file: with a label or without, or else as the agent reads its own data for the task."""
    from sojourn.data.csv import read_features  # noqa: PLC0415
    from sojourn.data.source import read_content  # noqa: PLC0415

    if form.task and form.task.kind == "forecast":
        return read_content(settings, "test", form.input, form.classes, form.task).x
    try:
        return read_features(settings, prod(form.input.shape))
    except DataError:
        if not form.task:
            raise
        try:
            return read_content(settings, "test", form.input, form.classes, form.task).x
        except DataError:
            pass
        raise


def of_npy(data: bytes, source: str) -> NDArray[np.generic]:
    """The array in these bytes: nothing is unpickled, and no more memory is taken than there are bytes."""
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read(file)
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise DataError(f"{source} cannot be read as NPY: {error}") from error
    if dtype.kind not in "buif" or len(data) - file.tell() != prod(shape) * dtype.itemsize:
        raise DataError(f"{source} holds no array of numbers, or not all of it")
    flat = np.frombuffer(data, dtype=dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")


def of_csv(data: bytes, form: Form) -> NDArray[np.generic]:
    """The rows in these bytes, by the rules of a CSV file."""
    from sojourn.data.csv import read_features  # noqa: PLC0415

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the body cannot be read as CSV: {error}") from error
    return read_features(DataSettings(path="the body"), prod(form.input.shape), io.StringIO(text, newline=""))


def of_image(data: bytes, form: Form) -> NDArray[np.generic]:
    """The image in these bytes."""
    from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

    return read_image(io.BytesIO(data), form, "the body", _MOST_PIXELS)
