"""NPZ files as every role reads them: nothing pickled is ever loaded, and errors say what is wrong with which file."""

from __future__ import annotations

import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.generic]]

NEEDED = "an NPZ with arrays x and y is needed"
_DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)
"""What numpy raises for a file that is cut short, has flipped bytes, or holds what only pickle can read."""


@contextmanager
def open_npz(path: str | Path, machine: str = "this machine") -> Iterator[Arrays]:
    """The arrays of a file, by name, each read when it is asked for; what goes wrong then is said of the file too."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise DataError(f"{path} is a single array; {NEEDED}")
        with content as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file on {machine}") from None
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read as NPZ: {str(error) or type(error).__name__}") from error


def array_of(path: str | Path, file: Arrays, name: str, advice: str = NEEDED) -> NDArray[np.generic]:
    """One array, which must be there; else the error names those that are, and gives the advice."""
    if name not in file:
        raise DataError(f"{path} has no array {name!r}, only {names_of(file)}; {advice}")
    return file[name]


def names_of(file: Iterable[str]) -> str:
    """The arrays that are there, for people."""
    return ", ".join(file) or "none at all"
