"""The SQLite file of a journal: tables, entries with checksums, and recovery from torn pages."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import shutil
import sqlite3
import time
import zlib
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from sojourn.errors import DamagedJournal
from sojourn.store.files import private_file, sync_path

SCHEMA = """
create table if not exists journal (seq integer primary key, record blob not null, checksum integer not null);
create table if not exists snapshot (
    one integer primary key check (one = 1), seq integer not null, state blob not null, checksum integer not null
);
create table if not exists boots (one integer primary key check (one = 1), count integer not null);
create table if not exists snapshot_before (
    one integer primary key check (one = 1), seq integer not null, state blob not null, checksum integer not null
);
create table if not exists quarantine (
    number integer primary key, seq integer not null, kind text not null, at text not null, reason text not null,
    data blob not null
);
"""
SNAPSHOTS = """
select seq, state, checksum, 1 from snapshot
union all select seq, state, checksum, 0 from snapshot_before order by 4 desc
"""
LAST = """
select max(seq) from (
    select max(seq) as seq from journal union all select seq from snapshot union all select seq from snapshot_before
    union all select max(seq) from quarantine
)
"""
"""The number of the last record ever written."""
INCOMPLETE = "pragma user_version = 1"
"""Entries were removed or unreadable: until the next snapshot, the sequence of records has gaps."""
COMPLETE = "pragma user_version = 0"


def prepare(db: sqlite3.Connection) -> None:
    """Create the tables of a journal."""
    db.executescript(SCHEMA)


_TAG = re.compile(rb"type.([a-z]+(?:-[a-z]+)*/[0-9]+)", re.DOTALL)
_KIND_BYTES = 80
"""The first bytes of a record, which contain the name of its kind."""


def checksum(seq: int, data: bytes) -> int:
    """Return the checksum of a record and its number: a row with another number is also damaged."""
    return zlib.crc32(data, seq & 0xFFFFFFFF)


class Entry(NamedTuple):
    """A record, or a snapshot of the state after the record with this number."""

    seq: int
    data: bytes
    checksum: int
    is_snapshot: bool = False

    @property
    def whole(self) -> bool:
        """Whether the checksum is correct."""
        return self.checksum == checksum(self.seq, self.data)

    @property
    def kind(self) -> str:
        """The kind of record, from its first bytes; empty if it cannot be read."""
        found = None if self.is_snapshot else _TAG.search(self.data[:_KIND_BYTES])
        return found.group(1).decode() if found else ""

    @property
    def name(self) -> str:
        """A description for messages."""
        if self.is_snapshot:
            return f"the snapshot at record {self.seq}"
        return f"record {self.seq} ({self.kind or 'its kind cannot be read'})"


def verified_records(entries: list[Entry], where: str) -> list[bytes]:
    """Return the bytes of these entries; raise DamagedJournal if a checksum is wrong."""
    for entry in entries:
        if not entry.whole:
            raise DamagedJournal(f"{where}: {entry.name} is damaged: its checksum is wrong")
    return [entry.data for entry in entries]


class QuarantinedEntry(NamedTuple):
    """An unusable entry that was removed from the journal, with the time and the reason."""

    seq: int
    kind: str
    at: str
    reason: str
    data: bytes


Row = dict[str, Any]
log = logging.getLogger("sojourn")
_COLUMNS = {
    "journal": ("seq", "record", "checksum"),
    "snapshot": ("one", "seq", "state", "checksum"),
    "snapshot_before": ("one", "seq", "state", "checksum"),
    "boots": ("one", "count"),
    "quarantine": ("number", "seq", "kind", "at", "reason", "data"),
}
"""The columns of each table, the key first."""
_COMPANIONS = ("-wal", "-shm")


def is_torn(db: sqlite3.Connection) -> bool:
    """Return whether the file has a damaged page."""
    try:
        (verdict,) = db.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError:
        return True
    return bool(verdict != "ok")


def salvage(path: Path) -> None:
    """Replace a torn journal by a new one with all readable rows; keep the torn file next to it.

    No other process may have it open. After a crash, the torn file is still in its place, so that this can be repeated.
    """
    with closing(sqlite3.connect(path)) as old:
        found = _read(old)
    if not any(found.values()):
        raise sqlite3.DatabaseError("database disk image is malformed, and no row can be read")
    fresh = path.with_name(f".{path.name}.salvaged")
    fresh.unlink(missing_ok=True)
    private_file(fresh)
    with closing(sqlite3.connect(fresh)) as new:
        prepare(new)
        for table, rows in found.items():
            for row in rows:
                new.execute(
                    f"insert or ignore into {table} ({', '.join(row)}) values ({', '.join('?' * len(row))})",  # noqa: S608
                    [*row.values()],
                )
        if not found.get("boots"):  # later than any boot known to other nodes, as after a restore
            new.execute("insert into boots values (1, ?)", (int(time.time()),))
        new.execute(INCOMPLETE)
        new.commit()
    kept = _keep_damaged(path)
    sync_path(fresh)
    fresh.replace(path)
    sync_path(path.parent)
    log.error(
        "%s was damaged: recovered %d records and %d snapshots; the damaged file is kept as %s",
        path,
        len(found.get("journal", [])),
        len(found.get("snapshot", [])) + len(found.get("snapshot_before", [])),
        kept,
    )


def _keep_damaged(path: Path) -> Path:
    """Rename the torn file and its companions, which SQLite would otherwise apply to the new file."""
    kept = path.with_name(f"{path.name}.damaged-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}")
    kept.unlink(missing_ok=True)
    os.link(path, kept)
    for ending in _COMPANIONS:
        log_file = Path(f"{path}{ending}")
        if log_file.exists():
            shutil.move(log_file, f"{kept}{ending}")
    return kept


def _read(db: sqlite3.Connection) -> dict[str, list[Row]]:
    """Return all readable rows, by table."""
    with suppress(sqlite3.DatabaseError):
        db.execute("pragma writable_schema = on")  # otherwise SQLite refuses to read a truncated file
    found: dict[str, list[Row]] = {}
    for table, columns in _COLUMNS.items():
        found[table] = _readable_rows(db, table, columns)
    return found


def _readable_rows(db: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> list[Row]:
    """Return the rows of a table before and after the torn pages."""
    rows: dict[int, Row] = {}
    for direction in ("asc", "desc"):
        with suppress(sqlite3.DatabaseError):  # the rest is read from the other end
            query = f"select {', '.join(columns)} from {table} order by {columns[0]} {direction}"  # noqa: S608
            for row in db.execute(query):
                rows.setdefault(row[0], dict(zip(columns, row, strict=True)))
    return [rows[key] for key in sorted(rows)]
