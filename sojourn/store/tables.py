"""The tables of a journal in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

SCHEMA = """
create table if not exists journal (seq integer primary key, record blob not null);
create table if not exists snapshot (
    one integer primary key check (one = 1), seq integer not null, state blob not null
);
create table if not exists boots (one integer primary key check (one = 1), count integer not null);
create table if not exists snapshot_checksum (one integer primary key check (one = 1), checksum integer not null);
create table if not exists snapshot_before (
    one integer primary key check (one = 1), seq integer not null, state blob not null, checksum integer
);
create table if not exists set_aside (
    number integer primary key, seq integer not null, kind text not null, at text not null, reason text not null,
    data blob not null
);
create trigger if not exists forget_checksum after insert on snapshot begin delete from snapshot_checksum; end;
"""
"""Tables of version 0.2.0 come first and keep their columns, so that it can still write here: the trigger sees to it
that no checksum of ours is left for a snapshot of its own."""
SNAPSHOTS = """
select seq, state, (select checksum from snapshot_checksum), 1 from snapshot
union all select seq, state, checksum, 0 from snapshot_before order by 4 desc
"""
LAST = """
select max(seq) from (
    select max(seq) as seq from journal union all select seq from snapshot union all select seq from snapshot_before
    union all select max(seq) from set_aside
)
"""
"""The number of the last record that there ever was."""
INCOMPLETE = "pragma user_version = 1"
"""Something was taken out, or could not be read: until the next snapshot, the records do not follow one another."""
WHOLE = "pragma user_version = 0"


def prepare(db: sqlite3.Connection) -> None:
    """Make the tables of a journal, or add what one of an older version lacks."""
    db.executescript(SCHEMA)
    if "checksum" not in {name for _, name, *_ in db.execute("pragma table_info(journal)")}:
        db.execute("alter table journal add column checksum integer")
