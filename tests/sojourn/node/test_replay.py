"""A node starts on a journal of which something cannot be used: that is set aside, and the rest counts."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sojourn.errors import StoreError
from sojourn.node.replay import replay
from sojourn.store.blobs import digest_of
from sojourn.store.entries import Entry, checksum
from sojourn.store.journal import FolderStore, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path


class Opened(msgspec.Struct, frozen=True, tag="box-opened/1"):
    """A box was opened."""

    box: str


class Put(msgspec.Struct, frozen=True, tag="thing-put/1"):
    """A thing was put into a box."""

    box: str
    thing: str
    weight: int = 0


class Boxes(msgspec.Struct):
    boxes: dict[str, list[str]] = {}
    weight: int = 0
    mended: int = 0
    lost: int = 0


class Keeper:
    """A machine as far as a replay needs one: boxes, and what is in them."""

    record_form = Opened | Put
    remedy = "Look under the bed."

    def __init__(self, *live: bytes) -> None:
        self.state = Boxes()
        self._live = frozenset(live)

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, snapshot: bytes) -> None:
        self.state = msgspec.msgpack.decode(snapshot, type=Boxes)

    def apply(self, record: Opened | Put) -> None:
        match record:
            case Opened():
                self.state.boxes[record.box] = []
            case Put():
                self.state.weight += record.weight  # half of it is done when the box turns out to be missing
                self.state.boxes[record.box].append(record.thing)

    def objection(self, record: Opened | Put) -> str | None:
        return "nobody keeps air" if isinstance(record, Put) and record.thing == "air" else None

    def mend(self, boots: int) -> None:
        self.state.mended = boots

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        self.state.lost += len(missing)
        return [f"{len(missing)} gone"] if b"m" * 32 in missing else []

    def live(self) -> AbstractSet[bytes]:
        return self._live


def written(store: Any, *records: Any) -> Any:
    for record in records:
        data = record if isinstance(record, bytes) else msgspec.msgpack.encode(record)
        store.append(data, sync=False)
    return store


def started(store: Any, *live: bytes, boots: int = 7) -> Keeper:
    keeper = Keeper(*live)
    replay(keeper, store, boots)  # type: ignore[arg-type]
    return keeper


def flip(store: MemoryStore, which: int) -> None:
    entry = store._records[which]
    store._records[which] = entry._replace(data=entry.data[:-1] + bytes([entry.data[-1] ^ 1]))


def test_a_journal_that_is_whole_is_replayed_as_it_is() -> None:
    store = written(MemoryStore(), Opened("a"), Put("a", "pen"))
    keeper = Keeper()
    assert replay(keeper, store, 7) == 2  # type: ignore[arg-type]
    assert keeper.state == Boxes({"a": ["pen"]})
    assert store.aside() == []


def test_a_damaged_record_costs_only_what_cannot_do_without_it(caplog: pytest.LogCaptureFixture) -> None:
    records = (Opened("a"), Opened("b"), Put("a", "pen", 1), Put("b", "ink", 2), Put("a", "air", 4), Put("a", "cap", 8))
    store = written(MemoryStore(), *records)
    flip(store, 1)
    keeper = started(store)
    assert keeper.state == Boxes({"a": ["pen", "cap"]}, weight=9, mended=7)  # nothing is half applied
    assert [(it.seq, it.kind, it.reason) for it in store.aside()] == [
        (2, "box-opened/1", "its checksum is wrong"),
        (4, "thing-put/1", "it does not follow what is here: KeyError: 'b'"),
        (5, "thing-put/1", "it does not follow what is here: nobody keeps air"),
    ]
    words = [it.getMessage() for it in caplog.records if it.levelno == logging.ERROR]
    assert "record 2 (box-opened/1) is set aside: its checksum is wrong; it said: A box was opened." in words[1]
    assert words[-1].endswith("Look under the bed.")
    caplog.clear()
    assert started(store).state == keeper.state  # once is enough
    assert not caplog.records


@pytest.mark.parametrize("data", [b"", b"\x81", b"\xc1", b"\xa4type", msgspec.msgpack.encode({"type": "thing-put/1"})])
def test_a_record_that_cannot_be_read_is_set_aside_although_it_is_what_was_written(data: bytes) -> None:
    store = written(MemoryStore(), Opened("a"), data, Put("a", "pen"))
    assert started(store).state.boxes == {"a": ["pen"]}
    (aside,) = store.aside()
    assert aside.reason.startswith("it cannot be read: ")
    assert aside.data == data


def test_a_state_that_cannot_be_read_back_is_not_kept() -> None:
    """A number that a record may have and a snapshot may not: the record that leads there is set aside."""
    store = written(MemoryStore(), Opened("a"), b"\xc1", Put("a", "star", 1 << 63), Put("a", "sun", 1 << 63))
    assert started(store).state.boxes == {"a": ["star"]}


def test_a_record_of_a_newer_version_ends_the_start_and_says_what_to_do() -> None:
    newer = msgspec.msgpack.encode({"type": "box-painted/1", "box": "a"})
    store = written(MemoryStore(), Opened("a"), newer)
    with pytest.raises(StoreError, match="install that version again, or restore a backup"):
        started(store)
    assert store.aside() == []
    store._records[1] = Entry(2, newer)  # without a checksum, an older version wrote it: then it is a damaged one
    assert started(store).state.boxes == {"a": []}
    assert [it.kind for it in store.aside()] == ["box-painted/1"]


def test_a_start_that_was_ended_after_something_was_set_aside_goes_the_careful_way_again() -> None:
    store = written(MemoryStore(), Opened("a"), Put("a", "pen"), Put("a", "cap"))
    store.set_aside(store.entries()[1][1], "the power went after this")
    assert started(store).state == Boxes({"a": ["cap"]}, mended=7)


def snapshots(folder: Path) -> FolderStore:
    """Two generations, and a record after each."""
    store = FolderStore(folder)
    keeper = Keeper()
    records: list[Opened | Put] = [Opened("a"), Put("a", "pen"), Put("a", "cap"), Put("a", "ink")]
    for number, record in enumerate(records):
        written(store, record)
        keeper.apply(record)
        if number in (0, 2):
            store.snapshot(keeper.snapshot())
    return store


def test_a_damaged_snapshot_costs_nothing_as_long_as_the_one_before_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(snapshots(tmp_path)) as store:
        store._db.execute("update snapshot_checksum set checksum = 1")
        assert started(store).state == Boxes({"a": ["pen", "cap", "ink"]})  # and no mending
        assert [it.kind for it in store.aside()] == ["snapshot"]
        assert "all that it held was read" in caplog.text
        assert store.load()[1] == []


def test_without_both_snapshots_it_starts_with_what_the_records_say(tmp_path: Path) -> None:
    with closing(snapshots(tmp_path)) as store:
        store._db.execute("update snapshot_checksum set checksum = 1")
        store._db.execute("update snapshot_before set state = x'81'")
        written(store, Opened("b"))
        assert started(store).state == Boxes({"b": []}, mended=7)
        assert [(it.seq, it.kind) for it in store.aside()] == [
            (3, "snapshot"),
            (1, "snapshot"),
            *((seq, "thing-put/1") for seq in (2, 3, 4)),
        ]


def test_blobs_that_are_missing_are_told_to_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    store = written(MemoryStore(), Opened("a"))
    here = store.blobs.put(b"here")
    assert started(store, here).state.lost == 0
    assert started(store, here, digest_of(b"on its way")).state.lost == 1  # nothing to say: the journal stays
    assert len(store.load()[1]) == 1
    assert started(store, here, b"m" * 32).state.lost == 1
    assert "memory: 1 gone" in caplog.text
    assert store.load()[1] == []


def test_a_checksum_is_of_the_number_too() -> None:
    assert checksum(1, b"same") != checksum(2, b"same")
    assert Entry(1, b"same", checksum(1, b"same")).whole
    assert not Entry(2, b"same", checksum(1, b"same")).whole
