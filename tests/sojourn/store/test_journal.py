"""The journal: records survive restarts and full disks, and only one process can open it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from sojourn.errors import DiskFull, StoreError
from sojourn.store.journal import MIN_COMPACTION_BYTES, FolderStore, MemoryStore


class Again:
    """A store that can be closed and reopened."""

    def __init__(self, kind, folder) -> None:
        self._kind, self._folder = kind, folder
        self.store = MemoryStore() if kind == "memory" else FolderStore(folder)

    def reopen(self):
        self.store.close()
        if self._kind == "folder":
            self.store = FolderStore(self._folder)
        return self.store


@pytest.fixture(params=["memory", "folder"])
def again(request, tmp_path):
    return Again(request.param, tmp_path / "store")


def test_new_store_is_empty(again) -> None:
    assert again.store.load() == (None, [])


def test_records_are_loaded_in_order(again) -> None:
    for number in range(5):
        again.store.append(bytes([number]), sync=number % 2 == 0)
    assert again.reopen().load() == (None, [bytes([number]) for number in range(5)])


def test_snapshot_replaces_earlier_records(again) -> None:
    again.store.append(b"1", sync=False)
    again.store.snapshot(b"state")
    again.store.append(b"2", sync=True)
    assert again.reopen().load() == (b"state", [b"2"])
    again.store.snapshot(b"later")
    again.store.snapshot(b"latest")
    again.store.append(b"3", sync=False)
    assert again.reopen().load() == (b"latest", [b"3"])
    again.reopen().snapshot(b"empty journal")
    again.store.append(b"4", sync=False)
    assert again.reopen().load() == (b"empty journal", [b"4"])


def test_boots_are_counted_with_unique_nonces(again) -> None:
    epochs = [again.store.boot()]
    epochs += [again.reopen().boot() for _ in range(3)]
    assert [epoch.count for epoch in epochs] == [1, 2, 3, 4]
    assert len({epoch.nonce for epoch in epochs}) == 4


def test_blobs_survive_restart(again) -> None:
    digest = again.store.blobs.put(b"data")
    again.store.blobs.sync(digest)
    assert again.reopen().blobs.read(digest) == b"data"


def test_second_process_is_rejected(tmp_path) -> None:
    store = FolderStore(tmp_path)
    with pytest.raises(StoreError, match="in use by another process"):
        FolderStore(tmp_path)
    code = (
        f"from pathlib import Path; from sojourn.store.journal import FolderStore; FolderStore(Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "in use by another process" in done.stderr
    store.append(b"mine", sync=True)
    store.close()
    assert FolderStore(tmp_path).load() == (None, [b"mine"])


def test_killed_process_keeps_its_records(tmp_path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from sojourn.store.journal import FolderStore\n"
        f"store = FolderStore(Path({str(tmp_path)!r}))\n"
        "for number in range(100): store.append(str(number).encode(), sync=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -9
    assert FolderStore(tmp_path).load()[1] == [str(number).encode() for number in range(100)]


def test_non_journal_file_is_reported(tmp_path) -> None:
    (tmp_path / "journal.db").write_bytes(b"this is not a database" * 1000)
    with pytest.raises(StoreError, match="move it away to start over"):
        FolderStore(tmp_path)


def fill_up(store: FolderStore, pages: int = 0) -> None:
    """Prevent the journal from growing, like a full disk."""
    (used,) = store._db.execute("pragma page_count").fetchone()
    store._db.execute(f"pragma max_page_count = {used + pages}")


def test_full_disk_is_reported_and_loses_nothing(tmp_path) -> None:
    store = FolderStore(tmp_path)
    store.append(b"before", sync=True)
    fill_up(store)
    with pytest.raises(DiskFull, match="free some space"):
        store.append(os.urandom(100_000), sync=True)
    with pytest.raises(DiskFull):
        store.snapshot(os.urandom(100_000))
    assert store.load() == (None, [b"before"])
    store._db.execute("pragma max_page_count = 100000")
    store.append(b"after", sync=True)
    store.snapshot(b"state")
    store.append(b"last", sync=True)
    store.close()
    assert FolderStore(tmp_path).load() == (b"state", [b"last"])


def test_sync_mode_follows_each_append(tmp_path) -> None:
    store = FolderStore(tmp_path)
    modes = []
    for sync in (False, True, True, False):
        store.append(b"record", sync=sync)
        modes.append(store._db.execute("pragma synchronous").fetchone()[0])
    assert modes == [1, 2, 2, 1]
    assert store._db.execute("pragma journal_mode").fetchone() == ("wal",)


def test_journal_is_readable_with_plain_sqlite(tmp_path) -> None:
    store = FolderStore(tmp_path)
    store.append(b"record", sync=True)
    with sqlite3.connect(tmp_path / "journal.db") as other:
        assert other.execute("select record from journal").fetchall() == [(b"record",)]


def test_memory_store_compacts_when_records_outgrow_state(tmp_path) -> None:
    store, folder = MemoryStore(), FolderStore(tmp_path)
    for _ in range(MIN_COMPACTION_BYTES // 1024):
        store.append(bytes(1024), sync=False)
        folder.append(bytes(1024), sync=False)
    assert not store.needs_compaction()
    store.append(b"x", sync=False)
    assert store.needs_compaction()
    assert not folder.needs_compaction()
    store.snapshot(bytes(3 * MIN_COMPACTION_BYTES))
    store.append(bytes(3 * MIN_COMPACTION_BYTES), sync=False)
    assert not store.needs_compaction()
    store.append(b"x", sync=False)
    assert store.needs_compaction()
    folder.close()


def test_memory_entries_do_not_depend_on_when_they_are_read() -> None:
    early, late = MemoryStore(), MemoryStore()
    for number in range(4):
        for store in (early, late):
            store.append(b"record %d" % number, sync=False)
        assert [entry.seq for entry in early.entries()[1]] == list(range(1, number + 2))
    assert early.entries() == late.entries()
    assert all(entry.whole for entry in late.entries()[1])
    for store in (early, late):
        store.append(b"one more", sync=False)
        store.snapshot(b"state")
        store.append(b"after", sync=False)
    (snapshot,), (after,) = late.entries()
    assert (snapshot.seq, after.seq) == (5, 6)
    assert early.entries() == late.entries()
