"""Memory that the process pool's engine and its workers share: start vectors and results lie in it and are not sent.

The engine's process alone decides what lies where. A worker reads and writes the places that a request names, so one
that dies takes nothing of the others along. A place is free again when nobody in the engine's process looks at it.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from fleet_sim.engines.shared import nameless_file

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = mmap.PAGESIZE
SPARE = 96 << 20
"""Bytes of free places that keep their memory for the next results; that of others goes back to the system."""
SPARSE = 4
"""How often the most that may be used fits into the file: what is not used takes no memory."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where some bytes lie in the arena."""

    at: int
    size: int


class Slot(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of one place. Whatever looks at them, array or view, keeps this object and with it the place."""

    place: Place
    arena: Arena


class Arena:
    """Places in one nameless file, which every process maps once and whole; only what is written takes memory."""

    def __init__(self, most: int) -> None:
        """Use at most `most` bytes."""
        self._most = -(-most // PAGE) * PAGE
        self.descriptor = nameless_file()
        os.ftruncate(self.descriptor, SPARSE * self._most)
        self._memory = mmap.mmap(self.descriptor, SPARSE * self._most)
        self._lock = threading.Lock()
        self._end = self._used = self._spare = 0
        self._free: dict[int, list[tuple[int, bool]]] = {}
        # Filled where the last look at a place ends, in any thread and in the midst of anything: so without a lock.
        self._left: deque[Place] = deque()

    @property
    def used(self) -> int:
        """Bytes of the places that somebody looks at."""
        with self._lock:
            self._collect()
            return self._used

    def room(self, size: int) -> Slot | None:
        """A place for so many bytes, with anything in it; None where the arena is full."""
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
        """Let go of the file; what somebody still looks at stays."""
        os.close(self.descriptor)

    def _take(self, whole: int) -> int | None:
        if self._used + whole > self._most:
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
        """Make the places free that nobody looks at any more."""
        while self._left:
            place = self._left.popleft()
            keep = self._spare + place.size <= SPARE or not hasattr(mmap, "MADV_REMOVE")
            if keep:
                self._spare += place.size
            else:
                self._memory.madvise(mmap.MADV_REMOVE, place.at, place.size)
            free = self._free.setdefault(place.size, [])
            free.insert(len(free) if keep else 0, (place.at, keep))  # those with memory are taken first
            self._used -= place.size


def map_arena(descriptor: int) -> Callable[[Place], memoryview]:
    """The arena as a worker sees it: the bytes of any place, to be read and written."""
    memory = memoryview(mmap.mmap(descriptor, 0))
    return lambda place: memory[place.at : place.at + place.size]


def as_blob(slot: Slot) -> bytes:
    """The bytes of a place as a blob that cannot be written.

    It is a view and not `bytes`; but all that anybody asks of a blob (its length, pieces, numbers, hash) it has, too.
    """
    return cast("bytes", slot.data.toreadonly())


def slot_of(blob: bytes | memoryview, arena: Arena) -> Slot | None:
    """The place in the arena that a blob is a whole view of."""
    if not isinstance(blob, memoryview) or not isinstance(blob.obj, Slot) or blob.obj.arena is not arena:
        return None
    return blob.obj


def most_bytes() -> int:
    """How much an arena may use on this machine: half of its memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
