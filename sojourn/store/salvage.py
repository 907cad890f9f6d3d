"""A journal with torn pages: what can still be read is taken over into a new file, and the old one is kept beside."""

from __future__ import annotations

import datetime as dt
import logging
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sojourn.store.files import sync_path
from sojourn.store.private import private_file
from sojourn.store.tables import INCOMPLETE, prepare

Row = dict[str, Any]
log = logging.getLogger("sojourn")
_COLUMNS = {
    "journal": ("seq", "record", "checksum"),
    "snapshot": ("one", "seq", "state"),
    "snapshot_checksum": ("one", "checksum"),
    "snapshot_before": ("one", "seq", "state", "checksum"),
    "boots": ("one", "count"),
    "set_aside": ("number", "seq", "kind", "at", "reason", "data"),
}
"""Of every table: its key, and what else is taken over."""
_BESIDE = ("-wal", "-shm")


def is_torn(db: sqlite3.Connection) -> bool:
    """Whether a page of the file is not what SQLite wrote."""
    try:
        (verdict,) = db.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError:
        return True
    return bool(verdict != "ok")


def salvage(path: Path) -> None:
    """Put a journal with all rows that can be read in the place of one that is torn, which is kept beside.

    Nobody else may have it open. A crash on the way leaves the torn one in its place, and this begins again.
    """
    with closing(sqlite3.connect(path)) as old:
        found = _read(old)
    if not any(found.values()):
        raise sqlite3.DatabaseError("database disk image is malformed, and nothing in it can be read")
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
        if not found.get("boots"):  # later than any boot that other nodes have heard of: as after a restore
            new.execute("insert into boots values (1, ?)", (int(time.time()),))
        new.execute(INCOMPLETE)
        new.commit()
    kept = _keep_beside(path)
    sync_path(fresh)
    fresh.replace(path)
    sync_path(path.parent)
    log.error(
        "%s was damaged: %d records, %d snapshots could be read and are taken over; the damaged file is kept as %s",
        path,
        len(found.get("journal", [])),
        len(found.get("snapshot", [])) + len(found.get("snapshot_before", [])),
        kept,
    )


def _keep_beside(path: Path) -> Path:
    """The torn file under a name of its own; its log is no longer beside its place, or it would be taken for ours."""
    kept = path.with_name(f"{path.name}.damaged-{dt.datetime.now(dt.UTC):%Y%m%d-%H%M%S}")
    kept.unlink(missing_ok=True)
    os.link(path, kept)
    for ending in _BESIDE:
        log_file = Path(f"{path}{ending}")
        if log_file.exists():
            shutil.move(log_file, f"{kept}{ending}")
    return kept


def _read(db: sqlite3.Connection) -> dict[str, list[Row]]:
    """All rows that can be read, by table; an older version had fewer tables and columns."""
    with suppress(sqlite3.DatabaseError):
        db.execute("pragma writable_schema = on")  # else a file that was cut short is not read at all
    found: dict[str, list[Row]] = {}
    for table, known in _COLUMNS.items():
        with suppress(sqlite3.DatabaseError):
            there = {name for _, name, *_ in db.execute(f"pragma table_info({table})")}
            columns = [column for column in known if column in there]
            found[table] = _readable(db, table, columns) if columns else []
    return found


def _readable(db: sqlite3.Connection, table: str, columns: list[str]) -> list[Row]:
    """The rows of a table from its beginning up to what is torn, and from its end back to it."""
    rows: dict[int, Row] = {}
    for direction in ("asc", "desc"):
        with suppress(sqlite3.DatabaseError):  # the rest is read from the other end
            query = f"select {', '.join(columns)} from {table} order by {columns[0]} {direction}"  # noqa: S608
            for row in db.execute(query):
                rows.setdefault(row[0], dict(zip(columns, row, strict=True)))
    return [rows[key] for key in sorted(rows)]
