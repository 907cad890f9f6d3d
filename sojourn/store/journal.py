"""What a node must not forget: a journal in SQLite (one file, WAL) with snapshots, and a folder of blobs."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sojourn.errors import DiskFull, StoreError
from sojourn.protocol.wire import Epoch
from sojourn.store.blobs import BlobStore, FolderBlobs, disk_errors
from sojourn.store.memory_blobs import MemoryBlobs
from sojourn.store.private import private_file, private_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOM = 16 << 10
"""Bytes of records that are nothing to speak of."""
_SCHEMA = """
create table if not exists journal (seq integer primary key, record blob not null);
create table if not exists snapshot (
    one integer primary key check (one = 1), seq integer not null, state blob not null
);
create table if not exists boots (one integer primary key check (one = 1), count integer not null);
"""


class Store(Protocol):
    """Journal, snapshots and blobs of one node."""

    @property
    def blobs(self) -> BlobStore:
        """The blobs that the records refer to."""

    def boot(self) -> Epoch:
        """Count one more start; returns the epoch of this one."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot, and the records that follow it."""

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write one record; with `sync` it survives a power cut."""

    def snapshot(self, state: bytes) -> None:
        """Replace everything so far by this state."""

    def crowded(self) -> bool:
        """Whether the records take so much room that a snapshot should take their place, however few they are."""

    def close(self) -> None:
        """Close the files of the store."""


class MemoryStore:
    """The twin of `FolderStore` for simulation and tests. `close` keeps its content, so a restart can be played."""

    def __init__(self) -> None:
        self.blobs: BlobStore = MemoryBlobs()
        self._boots = 0
        self._state: bytes | None = None
        self._records: list[bytes] = []
        self._room = ROOM

    def boot(self) -> Epoch:
        """Count one more start."""
        self._boots += 1
        return Epoch(self._boots, os.urandom(8))

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot and the records after it."""
        return self._state, list(self._records)

    def append(self, record: bytes, *, sync: bool) -> None:  # noqa: ARG002  # memory is never synced
        """Keep one record."""
        self._records.append(record)
        self._room -= len(record)

    def snapshot(self, state: bytes) -> None:
        """Let a snapshot take the place of all records so far."""
        self._state, self._records = state, []
        self._room = max(ROOM, len(state))

    def crowded(self) -> bool:
        """There are thousands of these in a process: records take no more room than the state, or than a little."""
        return self._room < 0

    def close(self) -> None:
        """Do nothing: memory needs no closing."""


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "disk I/O" in str(error):
            raise DiskFull(f"writing {path}: {error}; free some space and it goes on") from error
        raise StoreError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}; restore it from a copy, or move it away to start afresh") from error


class FolderStore:
    """A folder with `journal.db`, `blobs/` and a lock: one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "journal.db"
        with disk_errors(f"creating {folder}"):
            private_store(folder)
            private_file(folder / "lock")
            private_file(self._path)
            self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StoreError(f"{folder} is in use by another process: stop it, or name another folder") from None
        folder_blobs = FolderBlobs(folder / "blobs")
        folder_blobs.tidy()
        self.blobs: BlobStore = folder_blobs
        self._synced = False
        with _sqlite_errors(self._path):
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=normal")
            self._db.executescript(_SCHEMA)

    def boot(self) -> Epoch:
        """Count one more start."""
        with _sqlite_errors(self._path):
            row = self._db.execute(
                "insert into boots values (1, 1) on conflict (one) do update set count = count + 1 returning count"
            ).fetchone()
        return Epoch(row[0], os.urandom(8))

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot, and the records that follow it."""
        with _sqlite_errors(self._path):
            row = self._db.execute("select seq, state from snapshot").fetchone() or (0, None)
            records = self._db.execute("select record from journal where seq > ? order by seq", (row[0],))
            return row[1], [record for (record,) in records]

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write one record."""
        with _sqlite_errors(self._path):
            if sync != self._synced:
                self._db.execute(f"pragma synchronous={'full' if sync else 'normal'}")
                self._synced = sync
            self._db.execute("insert into journal (record) values (?)", (record,))

    def snapshot(self, state: bytes) -> None:
        """Replace everything so far by this state."""
        with _sqlite_errors(self._path):
            self._db.execute("begin immediate")
            try:
                (seq,) = self._db.execute("select coalesce(max(seq), 0) from journal").fetchone()
                old = self._db.execute("select seq from snapshot").fetchone()
                self._db.execute(
                    "insert or replace into snapshot values (1, ?, ?)", (max(seq, old[0] if old else 0), state)
                )
                # The newest row stays, so that sequence numbers never start over.
                self._db.execute("delete from journal where seq < ?", (seq,))
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # on a full disk SQLite has rolled back by itself
                    self._db.execute("rollback")
                raise

    def crowded(self) -> bool:
        """Never: a disk has room for many records."""
        return False

    def close(self) -> None:
        """Let go of the file and the lock."""
        self._db.close()
        self._lock.close()
