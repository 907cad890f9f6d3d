"""Damaged journals: damage is detected, readable entries are recovered, and nothing is deleted."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sojourn.errors import DamagedJournal, StoreError
from sojourn.store.blobs import FolderBlobs, digest_of
from sojourn.store.journal import FolderStore, MemoryStore

if TYPE_CHECKING:
    from pathlib import Path


def harm(folder: Path, *statement: Any) -> None:
    with closing(sqlite3.connect(folder / "journal.db")) as db:
        db.execute(*statement)
        db.commit()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store with a previous snapshot, a newest one, and a record after it."""
    store = FolderStore(tmp_path)
    for number in range(6):
        store.append(f"type-record-{number}/1".encode(), sync=False)
        if number in (2, 4):
            store.snapshot(f"state {number}".encode())
    store.boot()
    store.close()
    return tmp_path


@pytest.mark.parametrize(
    "statement",
    [
        "update journal set record = cast('type-record-5/2' as blob) where seq = 6",
        "update journal set record = cast('type-rec' as blob) where seq = 6",
        "update journal set record = 'type-record-5/1 as text' where seq = 6",
        "update journal set seq = 7 where seq = 6",
        "update snapshot set state = cast('state 5' as blob)",
        "update snapshot set checksum = checksum + 1",
    ],
)
def test_modified_journal_is_detected(folder: Path, statement: str) -> None:
    harm(folder, statement)
    store = FolderStore(folder)
    with pytest.raises(DamagedJournal, match="is damaged: its checksum is wrong"):
        store.load()
    store.close()


def test_previous_snapshot_is_kept_with_later_records(folder: Path) -> None:
    store = FolderStore(folder)
    snapshots, records = store.entries()
    assert [(it.seq, it.data, it.whole) for it in snapshots] == [(5, b"state 4", True), (3, b"state 2", True)]
    assert [it.seq for it in records] == [4, 5, 6]
    store.snapshot(b"state 5")
    store.snapshot(b"state 5 again")  # the same record: the one before is still another
    snapshots, records = store.entries()
    assert [it.data for it in snapshots] == [b"state 5 again", b"state 4"]
    assert [it.seq for it in records] == [6]
    store.close()


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_records_set_aside_are_kept_until_next_snapshot(kind: str, tmp_path: Path) -> None:
    store: FolderStore | MemoryStore = FolderStore(tmp_path) if kind == "folder" else MemoryStore()
    for number in range(3):
        store.append(b"\x81\xa4type\xabof-kind-%d/1" % number, sync=False)
    store.quarantine(store.entries()[1][1], "it is wrong")
    with pytest.raises(DamagedJournal, match="entries were removed"):
        store.load()
    (quarantined,) = store.quarantined()
    assert (quarantined.seq, quarantined.reason, quarantined.data) == (2, "it is wrong", b"\x81\xa4type\xabof-kind-1/1")
    assert [it.seq for it in store.entries()[1]] == [1, 3]
    store.quarantine(store.entries()[1][1], "so is this")
    store.append(b"new", sync=False)
    assert [it.seq for it in store.entries()[1]] == [1, 4]  # no number is given twice
    store.snapshot(b"state")
    assert store.load() == (b"state", [])
    store.quarantine(store.entries()[0][0], "the snapshot too")
    assert store.entries()[0] == []
    store.close()


def many(folder: Path) -> None:
    """Return a journal of about forty pages: records of a kilobyte after a snapshot."""
    store = FolderStore(folder)
    store.boot()
    store.snapshot(b"state")
    for number in range(120):
        store.append(bytes([number]) * 1000, sync=False)
    store.close()


def tear(folder: Path, page: int) -> None:
    path = folder / "journal.db"
    data = bytearray(path.read_bytes())
    data[page * 4096 : (page + 1) * 4096] = os.urandom(4096)
    path.write_bytes(data)


def test_readable_records_of_torn_journal_are_salvaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    many(tmp_path)
    before = (tmp_path / "journal.db").read_bytes()
    tear(tmp_path, len(before) // 4096 - 12)
    torn = (tmp_path / "journal.db").read_bytes()
    store = FolderStore(tmp_path)
    assert "was damaged" in caplog.text
    with pytest.raises(DamagedJournal):
        store.load()
    (snapshot,), records = store.entries()
    assert snapshot.data == b"state"
    assert snapshot.whole
    seqs = [it.seq for it in records]
    assert 100 < len(seqs) < 120
    assert seqs == sorted(seqs)
    assert (seqs[0], seqs[-1]) == (1, 120)
    assert all(it.whole and it.data == bytes([it.seq - 1]) * 1000 for it in records)
    assert store.boot().count == 2
    (kept,) = tmp_path.glob("journal.db.damaged-*[0-9]")
    assert kept.read_bytes() == torn
    store.snapshot(b"state without")
    store.append(b"more", sync=True)
    store.close()
    assert FolderStore(tmp_path).load() == (b"state without", [b"more"])


def test_torn_page_is_survived_at_any_position(tmp_path: Path) -> None:
    """The error names a file without its first page; with any other torn page, the store opens."""
    many(tmp_path)
    whole = (tmp_path / "journal.db").read_bytes()
    pages = len(whole) // 4096
    for page in (0, *range(1, 12), *range(12, pages, 5), pages - 1):
        (tmp_path / "journal.db").write_bytes(whole)
        tear(tmp_path, page)
        if page == 0:
            with pytest.raises(StoreError, match="move it away to start over"):
                FolderStore(tmp_path)
            continue
        store = FolderStore(tmp_path)
        assert all(it.whole for it in store.entries()[1])
        assert store.boot().count in (2, *range(int(time.time()) - 3600, int(time.time()) + 3600))
        store.append(b"it continues", sync=True)
        store.close()


def test_truncated_journal_is_salvaged(tmp_path: Path) -> None:
    many(tmp_path)
    whole = (tmp_path / "journal.db").read_bytes()
    (tmp_path / "journal.db").write_bytes(whole[: 4096 * 20])
    store = FolderStore(tmp_path)
    records = store.entries()[1]
    assert records
    assert [it.seq for it in records] == [*range(1, len(records) + 1)]
    store.close()


def test_damaged_blob_is_deleted(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path)
    good, bad, gone = blobs.put(b"good"), blobs.put(b"bad"), digest_of(b"gone")
    blobs.path(bad).write_bytes(b"not")
    assert blobs.drop_damaged([good, bad, gone]) == [bad]
    assert blobs.has(good)
    assert not blobs.has(bad)
