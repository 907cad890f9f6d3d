"""What a person gives to predict from: an image, an NPZ or NPY file, a CSV file, a text, or the body of a request.

A forecast goes on from the end of a series, and so does a text: the last steps, or tokens, are taken.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np
from numpy.lib import format as npy

from sojourn.data.column_names import rows_by_name
from sojourn.data.npz import read_rows
from sojourn.data.samples import content_of, rows_in
from sojourn.data.series import latest_windows
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
            found = _csv_rows(settings, form)
        case ".txt" if form.task and form.task.kind == "tokens":
            from sojourn.data.tokens import read_text  # noqa: PLC0415

            found, one = _end_of(read_text(settings).x, form, path), True
        case ".npz":
            found = read_rows(path, form.table or None)
        case ".npy":
            try:
                found = of_npy(Path(path).read_bytes(), path)
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
        case _:
            from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

            found, one = read_image(Path(path), form, path), True
    rows, single = _in_shape(found, form, path)
    return on_scale(rows, settings), one or single


def rows_of(x: object, form: Form, source: str) -> tuple[NDArray[np.generic], bool]:
    """What a program gives as rows in the model's shape, and whether it is one sample.

    An array or lists of numbers; a mapping from the names of columns to numbers, or a list of mappings; the path of a
    file that `sojourn agent predict` reads; or several paths.
    """
    if isinstance(x, str | Path):
        return read_inputs(DataSettings(path=str(x)), form)
    if isinstance(x, list | tuple) and x and all(isinstance(each, str | Path) for each in x):
        return np.concatenate([read_inputs(DataSettings(path=str(each)), form)[0] for each in x]), False
    if isinstance(x, Mapping) or (isinstance(x, list | tuple) and any(isinstance(each, Mapping) for each in x)):
        named = rows_by_name([x] if isinstance(x, Mapping) else x, form.table or None, form.task or None)
        window = form.task.window if form.task else None
        rows, _ = _in_shape(named, form, source)
        return rows, isinstance(x, Mapping) or window is not None
    try:
        given = np.asarray(x)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"this is no array of numbers: {error}") from error
    return _in_shape(given, form, source)


def _csv_rows(settings: DataSettings, form: Form, text: TextIO | None = None) -> NDArray[np.generic]:
    from sojourn.data.csv import read_csv, read_features  # noqa: PLC0415
    from sojourn.data.csv_columns import Asked  # noqa: PLC0415

    task = form.task or None
    if task is None or task.window is None:
        return read_features(settings, form, text)
    return latest_windows(
        read_csv(settings, Asked(task, table=form.table or None), text), form.input, task.window.steps
    )


def _in_shape(x: NDArray[np.generic], form: Form, source: str) -> tuple[NDArray[np.generic], bool]:
    """Samples, or one, in the model's shape; of a series or a text that is longer, its end."""
    try:
        return rows_in(x, form.input.shape, source)
    except DataError:
        window = form.task.window if form.task else None
        if window and x.ndim in (1, 2, 3) and x.dtype.kind in "buif":
            rows = latest_windows(content_of(x, None, (), source), form.input, window.steps)
            return rows, x.ndim < 3
        if form.task and form.task.kind == "tokens" and x.ndim == 1:
            return _end_of(x, form, source), True
        raise


def _end_of(tokens: NDArray[np.generic], form: Form, source: str) -> NDArray[np.generic]:
    length = form.input.shape[0]
    if len(tokens) < length:
        raise DataError(f"{source} has {len(tokens)} tokens, the model needs {length}")
    return np.asarray(tokens[-length:])[np.newaxis]


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
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"the body cannot be read as CSV: {error}") from error
    return _csv_rows(DataSettings(path="the body"), form, io.StringIO(text, newline=""))


def of_image(data: bytes, form: Form) -> NDArray[np.generic]:
    """The image in these bytes."""
    from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

    return read_image(io.BytesIO(data), form, "the body", _MOST_PIXELS)
