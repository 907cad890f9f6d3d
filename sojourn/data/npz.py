"""NPZ files: samples and labels, and perhaps class names; nothing pickled is ever loaded."""

from __future__ import annotations

import io
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.column_names import FEATURE_NAMES, FoundColumns, places_of
from sojourn.data.labels import texts
from sojourn.data.samples import content_of
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from sojourn.data.samples import Content
    from sojourn.data.source import DataSettings, Purpose
    from sojourn.protocol.spec import TableSpec

    Arrays = Mapping[str, NDArray[np.generic]]
    Pair = tuple[str, str]

STRIPS = "_webp"
"""Images may be packed as lossless WebP strips: NAME_webp holds their bytes, NAME_webp_off where each begins and the
last one ends, NAME_webp_shape the shape (images, height, width, 3) of what they unpack to."""
TRAIN, TEST, WHOLE = ("x_train", "y_train"), ("x_test", "y_test"), ("x", "y")
NEEDED = "an NPZ with arrays x and y is needed"
_PAIRS: dict[Purpose, tuple[Pair, ...]] = {"train": (TRAIN, WHOLE, TEST), "test": (TEST, WHOLE, TRAIN)}
_ROWS = ("x", "x_test", "x_train")
_NAMES = ("classes", "class_names")
_QUANTITIES = ("target_names", "channels")
"""Arrays that say what the columns of targets, or the channels of series, are called."""
_ADVICE = f"{NEEDED}; a device's settings `x` and `y` may name others"
_PACKED = "strips need their ends and their shape"
_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""What numpy raises for a file that is cut short, has flipped bytes, or holds what only pickle can read."""


def read_npz(settings: DataSettings, part: Purpose = "train") -> Content:
    """What an NPZ file holds for training or for testing."""
    with open_npz(settings.path) as file:
        pair = pair_for(file, part)
        pair = (settings.x or pair[0], settings.y or pair[1])
        if settings.y:
            array_of(settings.path, file, settings.y, _ADVICE)
        return content_in(file, settings.path, pair, settings.class_names)


def read_rows(path: str, table: TableSpec | None = None) -> NDArray[np.generic]:
    """The samples of a file without their labels, to predict from; an array that is alone may have any name.

    table: the model's columns. If the file names its own, they are brought into the model's order.
    """
    with open_npz(path) as file:
        name = next((name for name in _ROWS if _holds(file, name)), None)
        arrays = [each for each in file if each != FEATURE_NAMES]
        if name is None and len(arrays) == 1:
            name = arrays[0]
        if name is None:
            raise DataError(f"{path} has no array x, only {names_of(file)}")
        x = _samples(file, path, name)
        if table and table.columns and FEATURE_NAMES in file and x.ndim > 1:
            return x[..., list(places_of(table.columns, texts(file[FEATURE_NAMES], path), path))]
        return x


@contextmanager
def open_npz(path: str | Path) -> Iterator[Arrays]:
    """The arrays of a file, by name, each read when it is asked for; what goes wrong then is said of the file too."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DataError(f"{path} is a single array; {NEEDED}")
        with content as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file on this machine") from None
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read as NPZ: {str(error) or type(error).__name__}") from error


def pair_for(file: Arrays, part: Purpose) -> Pair:
    """The names of samples and labels: those that are called after the part, else x and y, else the other part's.

    A file is named by its owner for what it is used for, so whatever pair it holds is good; where it holds several,
    the one that says what it is for goes first. Samples without labels are taken only where there are none with them.
    """
    whole = (pair for pair in _PAIRS[part] if holds_pair(file, pair))
    return next(whole, next((pair for pair in _PAIRS[part] if _holds(file, pair[0])), WHOLE))


def holds_pair(file: Arrays, pair: Pair) -> bool:
    """Whether a file has samples and labels of these names."""
    return _holds(file, pair[0]) and pair[1] in file


def content_in(file: Arrays, source: str, pair: Pair, names: tuple[str, ...] = ()) -> Content:
    """The samples and labels of these names; `names` say what integer labels mean, before the file's own names do.

    Where there are no labels the content has none: not every job needs them.
    """
    x, y = _samples(file, source, pair[0]), file.get(pair[1])
    own = next((texts(file[key], source) for key in _NAMES if key in file), ())
    absent = f"no array {pair[1]!r}, only {names_of(file)}; {_ADVICE}"
    content = content_of(x, y, names or own, source, absent if y is None else f"the array {pair[1]}")
    quantities = next((texts(file[key], source) for key in _QUANTITIES if key in file), ())
    content = replace(content, target_names=quantities) if quantities else content
    columns = next((texts(file[key], source) for key in (FEATURE_NAMES, "channels") if key in file), ())
    if not columns or content.x.ndim < 2:
        return content
    if len(columns) != content.x.shape[-1]:
        raise DataError(f"{source} names {len(columns)} columns, and its samples have {content.x.shape[-1]}")
    return replace(content, table=FoundColumns(columns))


def array_of(path: str | Path, file: Arrays, name: str, advice: str = NEEDED) -> NDArray[np.generic]:
    """One array, which must be there; else the error names those that are, and gives the advice."""
    if name not in file:
        raise DataError(f"{path} has no array {name!r}, only {names_of(file)}; {advice}")
    return file[name]


def names_of(file: Iterable[str]) -> str:
    """The arrays that are there, for people."""
    return ", ".join(file) or "none at all"


def _holds(file: Arrays, name: str) -> bool:
    return name in file or name + STRIPS in file


def _samples(file: Arrays, source: str, name: str) -> NDArray[np.generic]:
    if name in file or name + STRIPS not in file:
        return array_of(source, file, name, _ADVICE)
    parts = (array_of(source, file, name + STRIPS + part, _PACKED) for part in ("", "_off", "_shape"))
    packed, ends, shape = parts
    return _unpacked(packed.tobytes(), ends.tolist(), shape.tolist())


def _unpacked(content: bytes, ends: list[int], shape: list[int]) -> NDArray[np.uint8]:
    """Images out of strips, channels first."""
    from PIL import Image  # noqa: PLC0415  # only where images are packed

    count, height, width = shape[:3]
    images, at = np.empty((count, 3, height, width), np.uint8), 0
    for start, stop in pairwise(ends):
        with Image.open(io.BytesIO(content[start:stop])) as strip:
            some = np.asarray(strip.convert("RGB")).reshape(-1, height, width, 3)
        images[at : at + len(some)] = some.transpose(0, 3, 1, 2)
        at += len(some)
    if at != count:
        raise ValueError(f"its strips hold {at} images, not {count}")
    return images
