"""Reader of NPZ files with samples, labels and class names; pickled data is never loaded."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sojourn.data.column_names import FEATURE_NAMES, ColumnNames, column_positions
from sojourn.data.labels import texts
from sojourn.data.samples import Content, content_of
from sojourn.data.source import DataSettings, Purpose
from sojourn.errors import DataError
from sojourn.protocol.spec import TableSpec

Arrays = Mapping[str, NDArray[np.generic]]
Pair = tuple[str, str]

STRIPS = "_webp"
"""Suffix of images packed as lossless WebP strips: NAME_webp has the bytes, NAME_webp_off the offset of each strip and
the end of the last one, NAME_webp_shape the unpacked shape (images, height, width, 3)."""
TRAIN, TEST, WHOLE = ("x_train", "y_train"), ("x_test", "y_test"), ("x", "y")
NEEDED = "an NPZ file with arrays x and y is required"
_PAIRS: dict[Purpose, tuple[Pair, ...]] = {"train": (TRAIN, WHOLE, TEST), "test": (TEST, WHOLE, TRAIN)}
_ROWS = ("x", "x_test", "x_train")
_NAMES = ("classes", "class_names")
_QUANTITIES = ("target_names", "channels")
"""Arrays with the names of the target columns, or of the channels of series."""
_ADVICE = f"{NEEDED}; data.x and data.y in a device's settings select other arrays"
_PACKED = "WebP strips need the arrays with their offsets and shape"
_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""Errors that numpy raises for a file that is truncated, corrupt or pickled."""


def read_npz(settings: DataSettings, part: Purpose = "train") -> Content:
    """Read the samples of an NPZ file for training or testing."""
    with open_npz(settings.path) as file:
        pair = pair_for(file, part)
        pair = (settings.x or pair[0], settings.y or pair[1])
        if settings.y:
            array_of(settings.path, file, settings.y, _ADVICE)
        return content_in(file, settings.path, pair, settings.class_names)


def read_rows(path: str, table: TableSpec | None = None) -> NDArray[np.generic]:
    """Read a file's samples for prediction, without labels; a file's only array may have any name.

    table: the model's columns. If the file names its columns, they are reordered to match.
    """
    with open_npz(path) as file:
        name = next((name for name in _ROWS if _holds(file, name)), None)
        arrays = [each for each in file if each != FEATURE_NAMES]
        if name is None and len(arrays) == 1:
            name = arrays[0]
        if name is None:
            raise DataError(f"{path} has no array x (found: {names_of(file)})")
        x = _samples(file, path, name)
        if table and table.columns and FEATURE_NAMES in file and x.ndim > 1:
            return x[..., list(column_positions(table.columns, texts(file[FEATURE_NAMES], path), path))]
        return x


@contextmanager
def open_npz(path: str | Path) -> Iterator[Arrays]:
    """Open a file's arrays by name, each read on access; any read error becomes a DataError that names the file."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DataError(f"{path} is a single array; {NEEDED}")
        with content as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path} does not exist on this machine") from None
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read as NPZ: {str(error) or type(error).__name__}") from error


def pair_for(file: Arrays, part: Purpose) -> Pair:
    """Return the array names of samples and labels: those of the part, then x and y, then those of the other part.

    Any pair is accepted, because the owner chose the file for this purpose. Samples without labels are used only if no
    pair has labels.
    """
    whole = (pair for pair in _PAIRS[part] if holds_pair(file, pair))
    return next(whole, next((pair for pair in _PAIRS[part] if _holds(file, pair[0])), WHOLE))


def holds_pair(file: Arrays, pair: Pair) -> bool:
    """Return whether a file has samples and labels of these names."""
    return _holds(file, pair[0]) and pair[1] in file


def content_in(file: Arrays, source: str, pair: Pair, names: tuple[str, ...] = ()) -> Content:
    """Read the samples and labels of these names; the class names `names` take precedence over the file's.

    Labels are optional: not every job needs them.
    """
    x, y = _samples(file, source, pair[0]), file.get(pair[1])
    own = next((texts(file[key], source) for key in _NAMES if key in file), ())
    absent = f"no array {pair[1]!r} (found: {names_of(file)}); {_ADVICE}"
    content = content_of(x, y, names or own, source, absent if y is None else f"the array {pair[1]}")
    quantities = next((texts(file[key], source) for key in _QUANTITIES if key in file), ())
    content = replace(content, target_names=quantities) if quantities else content
    columns = next((texts(file[key], source) for key in (FEATURE_NAMES, "channels") if key in file), ())
    if not columns or content.x.ndim < 2:
        return content
    if len(columns) != content.x.shape[-1]:
        raise DataError(f"{source} names {len(columns)} columns, but its samples have {content.x.shape[-1]}")
    return replace(content, table=ColumnNames(columns))


def array_of(path: str | Path, file: Arrays, name: str, advice: str = NEEDED) -> NDArray[np.generic]:
    """Return an array; if it is missing, raise DataError with the available names and the advice."""
    if name not in file:
        raise DataError(f"{path} has no array {name!r} (found: {names_of(file)}); {advice}")
    return file[name]


def names_of(file: Iterable[str]) -> str:
    """Return the array names as text."""
    return ", ".join(file) or "none"


def _holds(file: Arrays, name: str) -> bool:
    return name in file or name + STRIPS in file


def _samples(file: Arrays, source: str, name: str) -> NDArray[np.generic]:
    if name in file or name + STRIPS not in file:
        return array_of(source, file, name, _ADVICE)
    parts = (array_of(source, file, name + STRIPS + part, _PACKED) for part in ("", "_off", "_shape"))
    packed, ends, shape = parts
    return _unpacked(packed.tobytes(), ends.tolist(), shape.tolist())


def _unpacked(content: bytes, ends: list[int], shape: list[int]) -> NDArray[np.uint8]:
    """Unpack images from WebP strips, channels first."""
    from PIL import Image  # noqa: PLC0415  # only for packed images

    count, height, width = shape[:3]
    images, at = np.empty((count, 3, height, width), np.uint8), 0
    for start, stop in pairwise(ends):
        with Image.open(io.BytesIO(content[start:stop])) as strip:
            some = np.asarray(strip.convert("RGB")).reshape(-1, height, width, 3)
        images[at : at + len(some)] = some.transpose(0, 3, 1, 2)
        at += len(some)
    if at != count:
        raise ValueError(f"its strips contain {at} images instead of {count}")
    return images
