"""Shared memory of the process pool and its workers: the data set, start vectors and results."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

# Arrays are shared through an open file without a name, so that nothing is left behind when a process dies.
# `multiprocessing.shared_memory` is unsuitable: its segments have names, so they outlive a crash, and in a container
# they must fit into a /dev/shm of 64 MB.

_ALIGNED = 64


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """The position of an array in the file."""

    at: int
    shape: tuple[int, ...]
    dtype: str


class SharedArrays:
    """Copies of arrays in a file without a name."""

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
        """Close the file; it is freed when no process has it mapped."""
        os.close(self.descriptor)


def map_arrays(descriptor: int, layouts: tuple[Layout, ...]) -> list[NDArray[Any]]:
    """Map the arrays of a SharedArrays file, read-only and without a copy, in any process that has it open."""
    memory = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return [_view(memory, layout) for layout in layouts]


def _view(memory: mmap.mmap, layout: Layout) -> NDArray[Any]:
    return np.ndarray(layout.shape, np.dtype(layout.dtype), memory, layout.at)


def nameless_file() -> int:
    """Return an open file that no folder lists; it is freed with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sojourn")
    with TemporaryFile() as file:
        return os.dup(file.fileno())


# The arena: start vectors and results are in shared memory and are not sent through pipes. Only the engine's process
# allocates places. A worker reads and writes the places named in a request, so a dying worker damages no others. A
# place is free again when the engine's process holds no reference to it.

PAGE = mmap.PAGESIZE
SPARE = 96 << 20
"""Bytes of free places that keep their memory for the next results; other free memory is returned to the system."""
SPARSE = 4
"""The file's size as a multiple of the memory limit; unused parts of the file take no memory."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """The position of a range of bytes in the arena."""

    at: int
    size: int


class Slot(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of one place. Every array or view of them references this object, which keeps the place allocated."""

    place: Place
    arena: Arena


class Arena:
    """Places in one nameless file, which every process maps once as a whole; only written parts take memory."""

    def __init__(self, limit: int) -> None:
        """Use at most `limit` bytes."""
        self._limit = -(-limit // PAGE) * PAGE
        self.descriptor = nameless_file()
        os.ftruncate(self.descriptor, SPARSE * self._limit)
        self._memory = mmap.mmap(self.descriptor, SPARSE * self._limit)
        self._lock = threading.Lock()
        self._end = self._used = self._spare = 0
        self._free: dict[int, list[tuple[int, bool]]] = {}
        # Appended to when the last reference to a place is dropped, in any thread and at any point; therefore without a
        # lock.
        self._left: deque[Place] = deque()

    @property
    def used(self) -> int:
        """The bytes of allocated places."""
        with self._lock:
            self._collect()
            return self._used

    def room(self, size: int) -> Slot | None:
        """Allocate a place with undefined contents; None if the arena is full."""
        whole = -(-max(size, 1) // PAGE) * PAGE
        with self._lock:
            self._collect()
            at = self._take(whole)
        if at is None:
            return None
        slot = Slot(size, np.uint8, self._memory, at)
        slot.place, slot.arena = Place(at, size), self
        weakref.finalize(slot, self._left.append, Place(at, whole)).atexit = False
        return slot

    def close(self) -> None:
        """Close the file; places that are still referenced stay valid."""
        os.close(self.descriptor)

    def _take(self, whole: int) -> int | None:
        if self._used + whole > self._limit:
            return None
        if free := self._free.get(whole):
            at, has_memory = free.pop()
            self._spare -= whole if has_memory else 0
        elif self._end + whole <= len(self._memory):
            at, self._end = self._end, self._end + whole
        else:
            return None
        self._used += whole
        return at

    def _collect(self) -> None:
        """Free the places without references."""
        while self._left:
            place = self._left.popleft()
            keep = self._spare + place.size <= SPARE or not hasattr(mmap, "MADV_REMOVE")
            if keep:
                self._spare += place.size
            else:
                self._memory.madvise(mmap.MADV_REMOVE, place.at, place.size)
            free = self._free.setdefault(place.size, [])
            free.insert(len(free) if keep else 0, (place.at, keep))  # places with memory are reused first
            self._used -= place.size


def map_arena(descriptor: int) -> Callable[[Place], memoryview]:
    """Map the arena in a worker, readable and writable."""
    memory = memoryview(mmap.mmap(descriptor, 0))
    return lambda place: memory[place.at : place.at + place.size]


def as_blob(slot: Slot) -> bytes:
    """Return the bytes of a place as a read-only blob.

    It is a view instead of `bytes`, with every operation that blobs need: length, slices, conversion to arrays,
    hashing.
    """
    return cast("bytes", slot.data.toreadonly())


def slot_of(blob: bytes | memoryview, arena: Arena) -> Slot | None:
    """Return the place in the arena that a blob is a full view of."""
    if not isinstance(blob, memoryview) or not isinstance(blob.obj, Slot) or blob.obj.arena is not arena:
        return None
    return blob.obj


def arena_limit() -> int:
    """Return the memory limit of an arena on this machine: half of its memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


KEPT = 8 << 20
"""Bytes of unused blobs (kits, small models) that stay in the arena for the next visits."""


class PlacedBlobs:
    """The blobs of running visits, and some of earlier ones."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._lock = arena, threading.Lock()
        self._slots: WeakValueDictionary[bytes, Slot] = WeakValueDictionary()
        self._kept: dict[bytes, Slot] = {}

    def place(self, digest: bytes, read: Callable[[bytes], bytes]) -> Slot | bytes:
        """Return the place of the blob, valid while the caller holds the result; its bytes if the arena is full."""
        with self._lock:
            slot = self._slots.get(digest)
            if slot is None:
                data = read(digest)
                slot = slot_of(data, self._arena)
                slot = self._written(data) if slot is None else slot
                if slot is None:
                    return bytes(data)
                self._slots[digest] = slot
            self._keep(digest, slot)
            return slot

    def _written(self, data: bytes) -> Slot | None:
        slot = self._arena.room(len(data))
        if slot is not None:
            slot[:] = np.frombuffer(data, np.uint8)
        return slot

    def _keep(self, digest: bytes, slot: Slot) -> None:
        """Keep the most recently used blob, and as many others as fit."""
        self._kept.pop(digest, None)
        self._kept[digest] = slot
        total = sum(each.nbytes for each in self._kept.values())
        while total > KEPT and self._kept:
            total -= self._kept.pop(next(iter(self._kept))).nbytes
