"""MNIST's own file format, IDX, plain or gzipped: Debian's Fashion-MNIST, and what torchvision keeps of MNIST's kin."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import numpy as np

from fleet_sim.datasets.data_set import Found
from sojourn.data.samples import content_of
from sojourn.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_UNSIGNED_BYTES = b"\x00\x00\x08"
_PARTS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def is_there(folder: Path) -> bool:
    """Whether a folder holds all four files."""
    return all(_file(folder, name) is not None for part in _PARTS.values() for name in part)


def read_folder(folder: Path, classes: tuple[str, ...] = ()) -> Found:
    """The four files of a folder."""
    x, y = (_read(folder, name) for name in _PARTS["train"])
    x_test, y_test = (_read(folder, name) for name in _PARTS["test"])
    test = content_of(x_test, y_test, classes, f"{folder} (test part)")
    return Found(content_of(x, y, classes, str(folder)), test)


def _file(folder: Path, name: str) -> Path | None:
    """The file of that name; some write a dot before `idx`."""
    names = [name + end for name in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(folder: Path, name: str) -> NDArray[np.uint8]:
    path = _file(folder, name)
    if path is None:
        raise DataError(f"{folder}: there is no {name} in it, nor {name}.gz")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    axes = content[3] if len(content) > 3 else 0
    start = 4 + 4 * axes
    if content[:3] != _UNSIGNED_BYTES or len(content) < start:
        raise DataError(f"{path} is not an IDX file of bytes")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", axes, 4))
    if len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise DataError(f"{path} is cut short or too long: its head says {shape}, {len(content) - start} bytes follow")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
