"""NPZ files: samples and labels, perhaps a test part, class names, users and domains."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from fleet_sim.datasets.data_set import Found
from sojourn.data.npz_arrays import array_of, names_of, open_npz
from sojourn.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from sojourn.data.npz_arrays import Arrays

STRIPS = "_webp"
"""Images may be packed as lossless WebP strips: NAME_webp holds their bytes, NAME_webp_off where each begins and the
last one ends, NAME_webp_shape the shape (images, height, width, 3) of what they unpack to."""
_ADVICE = "strips need their ends and their shape"
_TRAIN = (("x_train", "y_train"), ("x", "y"))
_CLASSES = ("classes", "class_names")
_USERS = ("users", "users_train", "w_train")
_DOMAINS = ("domains", "domains_train", "d_train")


def read_npz(path: Path, classes: tuple[str, ...] = ()) -> Found:
    """What an NPZ file holds; `classes` name its labels unless it does so itself. Pickled objects are never loaded."""
    with open_npz(path) as file:
        return _found(path, file, classes)


def _found(path: Path, file: Arrays, classes: tuple[str, ...]) -> Found:
    pairs = [pair for pair in _TRAIN if _holds(file, pair)]
    if not pairs:
        raise DataError(f"{path} has neither x and y nor x_train and y_train, only {names_of(file)}")
    x, y = (_images(path, file, key) for key in pairs[0])
    test = (_images(path, file, "x_test"), file["y_test"]) if _holds(file, ("x_test", "y_test")) else None
    named = _first(file, _CLASSES)
    if named is not None:
        classes = tuple(str(one) for one in named.ravel().astype(np.str_))
    return Found(str(path), x, y, test, classes, _first(file, _USERS), _first(file, _DOMAINS))


def _holds(file: Arrays, pair: tuple[str, str]) -> bool:
    return pair[1] in file and (pair[0] in file or pair[0] + STRIPS in file)


def _first(file: Arrays, keys: tuple[str, ...]) -> NDArray[np.generic] | None:
    return next((file[key] for key in keys if key in file), None)


def _images(path: Path, file: Arrays, key: str) -> NDArray[np.generic]:
    if key in file:
        return file[key]
    packed, ends, shape = (array_of(path, file, key + STRIPS + part, _ADVICE) for part in ("", "_off", "_shape"))
    return unpacked(packed.tobytes(), ends.tolist(), shape.tolist())


def unpacked(content: bytes, ends: list[int], shape: list[int]) -> NDArray[np.uint8]:
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
