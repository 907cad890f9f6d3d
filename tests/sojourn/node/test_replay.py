"""A node starts on a journal with unusable records: it sets them aside, and uses the rest."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from sojourn.errors import StoreError
from sojourn.node.replay import replay
from sojourn.store.blobs import digest_of
from sojourn.store.journal import FolderStore, MemoryStore
from sojourn.store.journal_file import Entry, checksum

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
    restarts: int = 0
    lost: int = 0


class Keeper:
    """A minimal machine for a replay: boxes, and their content."""

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

    def validation_error(self, record: Opened | Put) -> str | None:
        return "air cannot be kept" if isinstance(record, Put) and record.thing == "air" else None

    def reserve_newer_attempts(self, boots: int) -> None:
        self.state.restarts = boots

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
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


def test_intact_journal_is_replayed_unchanged() -> None:
    store = written(MemoryStore(), Opened("a"), Put("a", "pen"))
    keeper = Keeper()
    assert replay(keeper, store, 7) == 2  # type: ignore[arg-type]
    assert keeper.state == Boxes({"a": ["pen"]})
    assert store.quarantined() == []


def test_damaged_record_costs_only_its_dependents(caplog: pytest.LogCaptureFixture) -> None:
    records = (Opened("a"), Opened("b"), Put("a", "pen", 1), Put("b", "ink", 2), Put("a", "air", 4), Put("a", "cap", 8))
    store = written(MemoryStore(), *records)
    flip(store, 1)
    keeper = started(store)
    assert keeper.state == Boxes({"a": ["pen", "cap"]}, weight=9, restarts=7)  # nothing is half applied
    assert [(it.seq, it.kind, it.reason) for it in store.quarantined()] == [
        (2, "box-opened/1", "wrong checksum"),
        (4, "thing-put/1", "does not follow the current state: KeyError: 'b'"),
        (5, "thing-put/1", "does not follow the current state: air cannot be kept"),
    ]
    words = [it.getMessage() for it in caplog.records if it.levelno == logging.ERROR]
    assert "set aside record 2 (box-opened/1): wrong checksum; content: A box was opened." in words[1]
    assert words[-1].endswith("Look under the bed.")
    caplog.clear()
    assert started(store).state == keeper.state  # once is enough
    assert not caplog.records


@pytest.mark.parametrize("data", [b"", b"\x81", b"\xc1", b"\xa4type", msgspec.msgpack.encode({"type": "thing-put/1"})])
def test_undecodable_record_is_set_aside(data: bytes) -> None:
    store = written(MemoryStore(), Opened("a"), data, Put("a", "pen"))
    assert started(store).state.boxes == {"a": ["pen"]}
    (quarantined,) = store.quarantined()
    assert quarantined.reason.startswith("unreadable: ")
    assert quarantined.data == data


def test_record_leading_to_unreadable_state_is_set_aside() -> None:
    """A record may contain a number that a snapshot may not: the record that leads there is set aside."""
    store = written(MemoryStore(), Opened("a"), b"\xc1", Put("a", "star", 1 << 63), Put("a", "sun", 1 << 63))
    assert started(store).state.boxes == {"a": ["star"]}


def test_record_of_newer_version_stops_the_start_with_advice() -> None:
    newer = msgspec.msgpack.encode({"type": "box-painted/1", "box": "a"})
    store = written(MemoryStore(), Opened("a"), newer)
    with pytest.raises(StoreError, match="Install that version again, restore a backup"):
        started(store)
    assert store.quarantined() == []
    store._records[1] = Entry(2, newer, 0)  # its checksum is wrong: then it is a damaged one
    assert started(store).state.boxes == {"a": []}
    assert [it.kind for it in store.quarantined()] == ["box-painted/1"]


def test_interrupted_recovery_is_repeated_on_next_start() -> None:
    store = written(MemoryStore(), Opened("a"), Put("a", "pen"), Put("a", "cap"))
    store.quarantine(store.entries()[1][1], "the power went after this")
    assert started(store).state == Boxes({"a": ["cap"]}, restarts=7)


def snapshots(folder: Path) -> FolderStore:
    """Return a store with two generations of snapshots, and a record after each."""
    store = FolderStore(folder)
    keeper = Keeper()
    records: list[Opened | Put] = [Opened("a"), Put("a", "pen"), Put("a", "cap"), Put("a", "ink")]
    for number, record in enumerate(records):
        written(store, record)
        keeper.apply(record)
        if number in (0, 2):
            store.snapshot(keeper.snapshot())
    return store


def test_damaged_snapshot_is_replaced_by_the_previous_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(snapshots(tmp_path)) as store:
        store._db.execute("update snapshot set checksum = 1")
        assert started(store).state == Boxes({"a": ["pen", "cap", "ink"]})  # and no recovery
        assert [it.kind for it in store.quarantined()] == ["snapshot"]
        assert "its complete state was read" in caplog.text
        assert store.load()[1] == []


def test_start_without_both_snapshots_uses_the_records(tmp_path: Path) -> None:
    with closing(snapshots(tmp_path)) as store:
        store._db.execute("update snapshot set checksum = 1")
        store._db.execute("update snapshot_before set state = x'81'")
        written(store, Opened("b"))
        assert started(store).state == Boxes({"b": []}, restarts=7)
        assert [(it.seq, it.kind) for it in store.quarantined()] == [
            (3, "snapshot"),
            (1, "snapshot"),
            *((seq, "thing-put/1") for seq in (2, 3, 4)),
        ]


def test_missing_blobs_are_reported_to_the_machine(caplog: pytest.LogCaptureFixture) -> None:
    store = written(MemoryStore(), Opened("a"))
    here = store.blobs.put(b"here")
    assert started(store, here).state.lost == 0
    assert (
        started(store, here, digest_of(b"on its way")).state.lost == 1
    )  # nothing is reported: the journal is unchanged
    assert len(store.load()[1]) == 1
    assert started(store, here, b"m" * 32).state.lost == 1
    assert "memory: 1 gone" in caplog.text
    assert store.load()[1] == []


def test_checksum_covers_the_record_number() -> None:
    assert checksum(1, b"same") != checksum(2, b"same")
    assert Entry(1, b"same", checksum(1, b"same")).whole
    assert not Entry(2, b"same", checksum(1, b"same")).whole
