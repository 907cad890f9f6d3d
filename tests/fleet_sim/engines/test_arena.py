"""The arena: places are freed once they have no references, and never before."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_sim.engines import shared_memory as arenas
from fleet_sim.engines.shared_memory import PAGE, Arena, Place, as_blob, map_arena, slot_of

BIG = 3 * PAGE


def test_data_written_by_one_process_is_readable_by_another() -> None:
    arena = Arena(BIG)
    slot = arena.room(5)
    assert slot is not None
    there = map_arena(arena.descriptor)
    there(slot.place)[:] = b"hello"
    assert bytes(as_blob(slot)) == b"hello"
    assert slot_of(as_blob(slot), arena) is slot
    assert slot_of(as_blob(slot), Arena(BIG)) is None
    assert slot_of(b"hello", arena) is None


def test_referenced_slot_stays_allocated() -> None:
    arena = Arena(BIG)
    slot = arena.room(8)
    assert slot is not None
    slot[:] = np.arange(8)
    numbers = np.frombuffer(as_blob(slot)[4:], np.uint8)
    del slot
    assert arena.used == PAGE
    assert numbers.tolist() == [4, 5, 6, 7]
    del numbers
    assert arena.used == 0


def test_arena_stays_within_its_size_and_reuses_free_slots() -> None:
    arena = Arena(BIG)
    slots = [arena.room(PAGE) for _ in range(4)]
    assert slots[3] is None
    assert arena.used == BIG
    first = slots[0]
    assert first is not None
    place = first.place
    del first
    slots[0] = None
    again = arena.room(PAGE - 1)
    assert again is not None
    assert again.place == Place(place.at, PAGE - 1)


def test_free_memory_beyond_the_spare_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena(1 << 22)
    slot = arena.room(1 << 20)
    assert slot is not None
    slot[:] = 7
    monkeypatch.setattr(arenas, "SPARE", 0)
    del slot
    assert arena.used == 0
    again = arena.room(1 << 20)
    assert again is not None
    assert not again.any()  # another page: the system has reclaimed the written one


def test_referenced_blob_outlives_the_arena() -> None:
    arena = Arena(BIG)
    slot = arena.room(3)
    assert slot is not None
    slot[:] = 1
    blob = as_blob(slot)
    arena.close()
    del arena, slot
    assert bytes(blob) == b"\x01\x01\x01"
