"""What a person gives to predict from: an image, an NPZ or NPY file, a CSV file, or the body of a request."""

from __future__ import annotations

import io
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy

from sojourn.data.npz import read_rows
from sojourn.data.samples import shaped
from sojourn.data.source import DataSettings
from sojourn.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.source import Form

_MOST_PIXELS = 16_000_000
"""Decoded at once on behalf of others."""


def read_inputs(path: str, form: Form) -> NDArray[np.generic]:
    """The rows in a file, in the model's shape."""
    match Path(path).suffix.lower():
        case ".csv":
            from sojourn.data.csv import read_features  # noqa: PLC0415

            found: NDArray[np.generic] = read_features(DataSettings(path=path), prod(form.input.shape))
        case ".npz":
            found = read_rows(path)
        case ".npy":
            try:
                found = of_npy(Path(path).read_bytes(), path)
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
        case _:
            from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

            return read_image(Path(path), form, path)
    return rows_of(found, form, path)


def rows_of(x: NDArray[np.generic], form: Form, source: str) -> NDArray[np.generic]:
    """One sample or many, as rows in the model's shape."""
    one = x.shape == form.input.shape
    return x[np.newaxis] if one else shaped(x, form.input.shape, source)


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


def of_image(data: bytes, form: Form) -> NDArray[np.generic]:
    """The image in these bytes."""
    from sojourn.data.images import read_image  # noqa: PLC0415  # Pillow comes with it

    return read_image(io.BytesIO(data), form, "the body", _MOST_PIXELS)
