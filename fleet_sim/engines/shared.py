"""Arrays in memory that processes share by an open file without a name: whoever dies, nothing is left behind.

Not `multiprocessing.shared_memory`: its segments have names, so they outlive a crash, and in a container they must fit
into a /dev/shm of 64 MB.
"""

from __future__ import annotations

import mmap
import os
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNED = 64


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """Where an array lies in the file."""

    at: int
    shape: tuple[int, ...]
    dtype: str


class SharedArrays:
    """Copies of some arrays, in a file that has no name."""

    def __init__(self, *arrays: NDArray[Any]) -> None:
        layouts, end = [], 0
        for array in arrays:
            layouts.append(Layout(end, array.shape, array.dtype.str))
            end += -(-array.nbytes // _ALIGNED) * _ALIGNED
        self.layouts = tuple(layouts)
        self.descriptor = nameless_file()
        os.ftruncate(self.descriptor, max(end, 1))
        memory = mmap.mmap(self.descriptor, max(end, 1))
        for array, layout in zip(arrays, layouts, strict=True):
            _view(memory, layout)[...] = array

    def close(self) -> None:
        """Let go of the file; it is gone when nobody looks at it any more."""
        os.close(self.descriptor)


def map_arrays(descriptor: int, layouts: tuple[Layout, ...]) -> list[NDArray[Any]]:
    """Map the arrays of a SharedArrays file, read-only and without a copy, in any process that has it open."""
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return [_view(memory, layout) for layout in layouts]


def _view(memory: mmap.mmap, layout: Layout) -> NDArray[Any]:
    return np.ndarray(layout.shape, np.dtype(layout.dtype), memory, layout.at)


def nameless_file() -> int:
    """An open file that no folder lists; it is gone with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sojourn")
    with TemporaryFile() as file:
        return os.dup(file.fileno())
