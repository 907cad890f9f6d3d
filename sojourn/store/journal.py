"""What a node must not forget: a journal in SQLite (one file, WAL) with snapshots, and a folder of blobs.

Every record and snapshot has a checksum. The snapshot before the newest stays, with the records since, so that a
damaged one costs nothing. What cannot be used is taken out of the journal and kept in a table of its own.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sojourn.errors import DamagedJournal, DiskFull, StoreError
from sojourn.protocol.wire import Epoch
from sojourn.store.blobs import BlobStore, FolderBlobs, disk_errors
from sojourn.store.entries import AsideEntry, Entry, checksum, unharmed
from sojourn.store.memory_blobs import MemoryBlobs
from sojourn.store.private import private_file, private_store
from sojourn.store.salvage import is_torn, salvage
from sojourn.store.tables import INCOMPLETE, LAST, SNAPSHOTS, WHOLE, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOM = 16 << 10
"""Bytes of records that are nothing to speak of."""


class Store(Protocol):
    """Journal, snapshots and blobs of one node."""

    @property
    def blobs(self) -> BlobStore:
        """The blobs that the records refer to."""

    def boot(self) -> Epoch:
        """Count one more start; returns the epoch of this one."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot, and the records that follow it; DamagedJournal where a checksum is wrong."""

    def entries(self) -> tuple[list[Entry], list[Entry]]:
        """All snapshots, newest first, and all records in their order, damaged or not."""

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Take a record or a snapshot that cannot be used out of the journal, and keep it apart."""

    def aside(self) -> list[AsideEntry]:
        """All that was ever set aside here."""

    @property
    def place(self) -> str:
        """Where the journal is, for messages."""

    @property
    def incomplete(self) -> bool:
        """Whether something was set aside, or could not be read, since the last snapshot."""

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

    def __init__(self, boots: int = 0) -> None:
        """`boots`: how often it was started already."""
        self.blobs: BlobStore = MemoryBlobs()
        self._boots = boots
        self._snapshot: Entry | None = None
        self._entries: list[Entry] = []
        self._fresh: list[bytes] = []
        """The newest records, which nobody has asked for yet: most are never asked for, and need no checksum."""
        self._aside: list[AsideEntry] = []
        self.incomplete = False
        self._seq = 0
        self._room = ROOM
        self.place = "memory"

    def boot(self) -> Epoch:
        """Count one more start."""
        self._boots += 1
        return Epoch(self._boots, os.urandom(8))

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot and the records after it."""
        if self.incomplete:
            raise DamagedJournal(f"{self.place}: something was taken out of it since the last snapshot")
        state = unharmed([self._snapshot], self.place)[0] if self._snapshot else None
        return state, unharmed(self._records, self.place)

    def entries(self) -> tuple[list[Entry], list[Entry]]:
        """The snapshot, and all records since."""
        return [self._snapshot] if self._snapshot else [], list(self._records)

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Take something out of the journal, and keep it apart."""
        self._aside.append(AsideEntry(entry.seq, entry.kind, "", reason, entry.data))
        if entry.is_snapshot:
            self._snapshot = None
        else:
            self._records.remove(entry)
        self.incomplete = True

    def aside(self) -> list[AsideEntry]:
        """All that was set aside."""
        return list(self._aside)

    @property
    def _records(self) -> list[Entry]:
        """All records since the snapshot."""
        for record in self._fresh:
            self._seq += 1
            self._entries.append(Entry(self._seq, record, checksum(self._seq, record)))
        self._fresh.clear()
        return self._entries

    def append(self, record: bytes, *, sync: bool) -> None:  # noqa: ARG002  # memory is never synced
        """Keep one record."""
        self._fresh.append(record)
        self._room -= len(record)

    def snapshot(self, state: bytes) -> None:
        """Let a snapshot take the place of all records so far: of thousands of stores, one generation is enough."""
        self._seq += len(self._fresh)
        self._snapshot = Entry(self._seq, state, checksum(self._seq, state), is_snapshot=True)
        self._entries, self._fresh = [], []
        self.incomplete = False
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
    """A folder with `journal.db`, `blobs/` and a lock: one process at a time.

    Of a journal with torn pages, what can be read is taken over into a new one, and the old file is kept beside.
    """

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
            self._db = self._whole()
            (self._seq,) = self._db.execute(f"select coalesce(({LAST}), 0)").fetchone()

    @property
    def place(self) -> str:
        """The path of the journal."""
        return str(self._path)

    @property
    def incomplete(self) -> bool:
        """Whether something was set aside, or lost with a torn page, since the last snapshot."""
        with _sqlite_errors(self._path):
            return bool(self._db.execute("pragma user_version").fetchone()[0])

    def _whole(self) -> sqlite3.Connection:
        """The journal, open; a torn one is salvaged first."""
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=normal")
            prepare(db)
            torn = is_torn(db)
        except sqlite3.DatabaseError as error:
            torn = error.sqlite_errorcode == sqlite3.SQLITE_CORRUPT
            if not torn:
                raise
        if not torn:
            return db
        db.close()
        salvage(self._path)
        return self._whole()

    def boot(self) -> Epoch:
        """Count one more start."""
        with _sqlite_errors(self._path):
            row = self._db.execute(
                "insert into boots values (1, 1) on conflict (one) do update set count = count + 1 returning count"
            ).fetchone()
        return Epoch(row[0], os.urandom(8))

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot, and the records that follow it."""
        if self.incomplete:
            raise DamagedJournal(f"{self.place}: something was taken out of it since the last snapshot")
        snapshots, records = self.entries()
        newest = snapshots[0] if snapshots else None
        after = [entry for entry in records if newest is None or entry.seq > newest.seq]
        return unharmed([newest], self.place)[0] if newest else None, unharmed(after, self.place)

    def entries(self) -> tuple[list[Entry], list[Entry]]:
        """The newest snapshot and the one before, and all records since that."""
        with _sqlite_errors(self._path):
            snapshots = self._db.execute(SNAPSHOTS).fetchall()
            records = self._db.execute("select seq, record, checksum from journal order by seq").fetchall()
        found = [Entry(seq, _bytes(data), kept, is_snapshot=True) for seq, data, kept, _ in snapshots]
        return found, [Entry(seq, _bytes(data), kept) for seq, data, kept in records]

    def set_aside(self, entry: Entry, reason: str) -> None:
        """Take something out of the journal, and keep it in a table of its own."""
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        kind = "snapshot" if entry.is_snapshot else entry.kind
        with self._in_one_step():
            self._db.execute(
                "insert into set_aside (seq, kind, at, reason, data) values (?, ?, ?, ?, ?)",
                (entry.seq, kind, at, reason, entry.data),
            )
            for table in ("snapshot", "snapshot_before") if entry.is_snapshot else ("journal",):
                self._db.execute(f"delete from {table} where seq = ?", (entry.seq,))  # noqa: S608  # our own names
            self._db.execute(INCOMPLETE)

    def aside(self) -> list[AsideEntry]:
        """All that was set aside, oldest first."""
        with _sqlite_errors(self._path):
            rows = self._db.execute("select seq, kind, at, reason, data from set_aside order by number").fetchall()
        return [AsideEntry(*row) for row in rows]

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write one record."""
        seq = self._seq + 1
        with _sqlite_errors(self._path):
            if sync != self._synced:
                self._db.execute(f"pragma synchronous={'full' if sync else 'normal'}")
                self._synced = sync
            row = (seq, record, checksum(seq, record))
            self._db.execute("insert into journal (seq, record, checksum) values (?, ?, ?)", row)
        self._seq = seq

    def snapshot(self, state: bytes) -> None:
        """Let this state stand for everything so far; the snapshot before it stays, and the records since that."""
        seq, db = self._seq, self._db
        with self._in_one_step():
            db.execute(
                "insert or replace into snapshot_before select one, seq, state, (select checksum from "
                "snapshot_checksum) from snapshot where seq < ?",
                (seq,),
            )
            db.execute("insert or replace into snapshot values (1, ?, ?)", (seq, state))
            db.execute("insert into snapshot_checksum values (1, ?)", (checksum(seq, state),))
            # The newest row stays, so that the numbers of an older version never start over either.
            db.execute(
                "delete from journal where seq <= (select coalesce(max(seq), 0) from snapshot_before) and seq < ?",
                (seq,),
            )
            db.execute(WHOLE)

    @contextmanager
    def _in_one_step(self) -> Iterator[None]:
        with _sqlite_errors(self._path):
            self._db.execute("begin immediate")
            try:
                yield
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


def _bytes(value: bytes | str | float | None) -> bytes:
    """A value as bytes, whatever a damaged page makes of its type."""
    return value if isinstance(value, bytes) else str(value).encode()
