"""Which blobs lie in the arena for workers to read: each is written there once, whichever workers need it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from fleet_sim.engines.arena import slot_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet_sim.engines.arena import Arena, Slot

KEPT = 8 << 20
"""Bytes of blobs that stay in the arena for the next visits when no visit under way needs them: kits, small models."""


class PlacedBlobs:
    """The blobs of visits under way, and a few of those before."""

    def __init__(self, arena: Arena) -> None:
        self._arena, self._lock = arena, threading.Lock()
        self._slots: WeakValueDictionary[bytes, Slot] = WeakValueDictionary()
        self._kept: dict[bytes, Slot] = {}

    def place(self, digest: bytes, read: Callable[[bytes], bytes]) -> Slot | bytes:
        """Where the blob lies, as long as the caller keeps what this returns; its bytes where the arena is full."""
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
        """Keep what was needed last, and as much of the rest as there is room for."""
        self._kept.pop(digest, None)
        self._kept[digest] = slot
        total = sum(each.nbytes for each in self._kept.values())
        while total > KEPT and self._kept:
            total -= self._kept.pop(next(iter(self._kept))).nbytes
