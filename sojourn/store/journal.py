"""The store of a node: a journal in SQLite (one file, WAL) with snapshots, and a folder of blobs.

Every record and snapshot has a checksum. The previous snapshot is kept with the records since then, so that a damaged
newest snapshot loses nothing. Damaged records and snapshots are moved to a separate table.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sojourn.errors import DamagedJournal, DiskFull, StoreError
from sojourn.protocol.wire import Epoch
from sojourn.store.blobs import BlobStore, FolderBlobs, disk_errors
from sojourn.store.files import private_file, private_store
from sojourn.store.journal_file import (
    COMPLETE,
    INCOMPLETE,
    LAST,
    SNAPSHOTS,
    Entry,
    QuarantinedEntry,
    checksum,
    is_torn,
    prepare,
    salvage,
    verified_records,
)
from sojourn.store.memory_blobs import MemoryBlobs

MIN_COMPACTION_BYTES = 16 << 10
"""Records below this size never require a compaction."""


class Store(Protocol):
    """The journal, snapshots and blobs of a node."""

    @property
    def blobs(self) -> BlobStore:
        """The blobs that records refer to."""

    def boot(self) -> Epoch:
        """Count a start and return its epoch."""

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """Return the newest snapshot and the records after it; raise DamagedJournal if a checksum is wrong."""

    def entries(self) -> tuple[list[Entry], list[Entry]]:
        """Return all snapshots, newest first, and all records in order, including damaged ones."""

    def quarantine(self, entry: Entry, reason: str) -> None:
        """Move a damaged record or snapshot out of the journal, and keep it."""

    def quarantined(self) -> list[QuarantinedEntry]:
        """Return all quarantined entries."""

    @property
    def place(self) -> str:
        """The location of the journal, for messages."""

    @property
    def incomplete(self) -> bool:
        """Whether entries were quarantined or unreadable since the last snapshot."""

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write a record; with `sync` it survives a power failure."""

    def snapshot(self, state: bytes) -> None:
        """Replace all records so far by this state."""

    def needs_compaction(self) -> bool:
        """Return whether the records are so large that a snapshot should replace them."""

    def close(self) -> None:
        """Close the files of the store."""


class MemoryStore:
    """An in-memory `FolderStore` for simulation and tests; `close` keeps the content, to simulate a restart."""

    def __init__(self, boots: int = 0) -> None:
        """`boots`: the number of earlier starts."""
        self.blobs: BlobStore = MemoryBlobs()
        self._boots = boots
        self._snapshot: Entry | None = None
        self._entries: list[Entry] = []
        self._unchecked: list[bytes] = []
        """The newest records, without checksums: most are never read."""
        self._quarantined: list[QuarantinedEntry] = []
        self.incomplete = False
        self._seq = 0
        self._bytes_left = MIN_COMPACTION_BYTES
        self.place = "memory"

    def boot(self) -> Epoch:
        """Count a start and return its epoch."""
        self._boots += 1
        return Epoch(self._boots, os.urandom(8))

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """Return the newest snapshot and the records after it."""
        if self.incomplete:
            raise DamagedJournal(f"{self.place}: entries were removed since the last snapshot")
        state = verified_records([self._snapshot], self.place)[0] if self._snapshot else None
        return state, verified_records(self._records, self.place)

    def entries(self) -> tuple[list[Entry], list[Entry]]:
        """Return the snapshot and all records since then."""
        return [self._snapshot] if self._snapshot else [], list(self._records)

    def quarantine(self, entry: Entry, reason: str) -> None:
        """Move an entry out of the journal, and keep it."""
        self._quarantined.append(QuarantinedEntry(entry.seq, entry.kind, "", reason, entry.data))
        if entry.is_snapshot:
            self._snapshot = None
        else:
            self._records.remove(entry)
        self.incomplete = True

    def quarantined(self) -> list[QuarantinedEntry]:
        """Return all quarantined entries."""
        return list(self._quarantined)

    @property
    def _records(self) -> list[Entry]:
        """All records since the snapshot, with checksums."""
        for record in self._unchecked:
            self._seq += 1
            self._entries.append(Entry(self._seq, record, checksum(self._seq, record)))
        self._unchecked.clear()
        return self._entries

    def append(self, record: bytes, *, sync: bool) -> None:  # noqa: ARG002  # memory is never synced
        """Store a record."""
        self._unchecked.append(record)
        self._bytes_left -= len(record)

    def snapshot(self, state: bytes) -> None:
        """Replace all records by a snapshot; keep no previous one, because there are thousands of these stores."""
        self._seq += len(self._unchecked)
        self._snapshot = Entry(self._seq, state, checksum(self._seq, state), is_snapshot=True)
        self._entries, self._unchecked = [], []
        self.incomplete = False
        self._bytes_left = max(MIN_COMPACTION_BYTES, len(state))

    def needs_compaction(self) -> bool:
        """Return whether the records take more memory than the state, because there are thousands of these stores."""
        return self._bytes_left < 0

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "disk I/O" in str(error):
            raise DiskFull(f"writing {path}: {error}; free some space to continue") from error
        raise StoreError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}; restore it from a backup, or move it away to start over") from error


class FolderStore:
    """A folder with `journal.db`, `blobs/` and a lock for one process at a time.

    The readable rows of a journal with torn pages are copied to a new journal, and the old file is kept next to it.
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
            raise StoreError(f"{folder} is in use by another process: stop it, or choose another folder") from None
        folder_blobs = FolderBlobs(folder / "blobs")
        folder_blobs.tidy()
        self.blobs: BlobStore = folder_blobs
        self._synced = False
        with _sqlite_errors(self._path):
            self._db = self._open_journal()
            (self._seq,) = self._db.execute(f"select coalesce(({LAST}), 0)").fetchone()

    @property
    def place(self) -> str:
        """The path of the journal."""
        return str(self._path)

    @property
    def incomplete(self) -> bool:
        """Whether entries were quarantined or lost with a torn page since the last snapshot."""
        with _sqlite_errors(self._path):
            return bool(self._db.execute("pragma user_version").fetchone()[0])

    def _open_journal(self) -> sqlite3.Connection:
        """Open the journal; salvage it first if it is torn."""
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
        return self._open_journal()

    def boot(self) -> Epoch:
        """Count a start and return its epoch."""
        with _sqlite_errors(self._path):
            row = self._db.execute(
                "insert into boots values (1, 1) on conflict (one) do update set count = count + 1 returning count"
            ).fetchone()
        return Epoch(row[0], os.urandom(8))

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """Return the newest snapshot and the records after it."""
        if self.incomplete:
            raise DamagedJournal(f"{self.place}: entries were removed since the last snapshot")
        snapshots, records = self.entries()
        newest = snapshots[0] if snapshots else None
        after = [entry for entry in records if newest is None or entry.seq > newest.seq]
        return verified_records([newest], self.place)[0] if newest else None, verified_records(after, self.place)

    def entries(self) -> tuple[list[Entry], list[Entry]]:
        """Return the newest snapshot and the previous one, and all records since the latter."""
        with _sqlite_errors(self._path):
            snapshots = self._db.execute(SNAPSHOTS).fetchall()
            records = self._db.execute("select seq, record, checksum from journal order by seq").fetchall()
        found = [Entry(seq, _bytes(data), kept, is_snapshot=True) for seq, data, kept, _ in snapshots]
        return found, [Entry(seq, _bytes(data), kept) for seq, data, kept in records]

    def quarantine(self, entry: Entry, reason: str) -> None:
        """Move an entry from the journal to the table `quarantine`."""
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        kind = "snapshot" if entry.is_snapshot else entry.kind
        with self._in_one_step():
            self._db.execute(
                "insert into quarantine (seq, kind, at, reason, data) values (?, ?, ?, ?, ?)",
                (entry.seq, kind, at, reason, entry.data),
            )
            for table in ("snapshot", "snapshot_before") if entry.is_snapshot else ("journal",):
                self._db.execute(f"delete from {table} where seq = ?", (entry.seq,))  # noqa: S608  # constant names
            self._db.execute(INCOMPLETE)

    def quarantined(self) -> list[QuarantinedEntry]:
        """Return all quarantined entries, oldest first."""
        with _sqlite_errors(self._path):
            rows = self._db.execute("select seq, kind, at, reason, data from quarantine order by number").fetchall()
        return [QuarantinedEntry(*row) for row in rows]

    def append(self, record: bytes, *, sync: bool) -> None:
        """Write a record."""
        seq = self._seq + 1
        with _sqlite_errors(self._path):
            if sync != self._synced:
                self._db.execute(f"pragma synchronous={'full' if sync else 'normal'}")
                self._synced = sync
            row = (seq, record, checksum(seq, record))
            self._db.execute("insert into journal (seq, record, checksum) values (?, ?, ?)", row)
        self._seq = seq

    def snapshot(self, state: bytes) -> None:
        """Store a snapshot; keep the previous one and the records since then."""
        seq, db = self._seq, self._db
        with self._in_one_step():
            db.execute(
                "insert or replace into snapshot_before select one, seq, state, checksum from snapshot where seq < ?",
                (seq,),
            )
            db.execute("insert or replace into snapshot values (1, ?, ?, ?)", (seq, state, checksum(seq, state)))
            db.execute("delete from journal where seq <= (select coalesce(max(seq), 0) from snapshot_before)")
            db.execute(COMPLETE)

    @contextmanager
    def _in_one_step(self) -> Iterator[None]:
        with _sqlite_errors(self._path):
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # on a full disk, SQLite has already rolled back
                    self._db.execute("rollback")
                raise

    def needs_compaction(self) -> bool:
        """Return False: a disk has space for many records."""
        return False

    def close(self) -> None:
        """Close the journal and release the lock."""
        self._db.close()
        self._lock.close()


def _bytes(value: bytes | str | float | None) -> bytes:
    """Return a value as bytes; a damaged page may change its type."""
    return value if isinstance(value, bytes) else str(value).encode()
