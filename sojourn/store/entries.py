"""A record or a snapshot as it lies in a journal: its number, its bytes, and the checksum that was written with it."""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from sojourn.errors import DamagedJournal

_TAG = re.compile(rb"type.([a-z]+(?:-[a-z]+)*/[0-9]+)", re.DOTALL)
_BEGINNING = 80
"""Bytes in which the name of a record's kind stands."""


def checksum(seq: int, data: bytes) -> int:
    """The checksum of a record of this number: a row that comes back under another number is damaged too."""
    return zlib.crc32(data, seq & 0xFFFFFFFF)


class Entry(NamedTuple):
    """A record, or a snapshot of the state after the record of this number."""

    seq: int
    data: bytes
    checksum: int | None = None
    """None where a version before 0.3.0 wrote it."""
    is_snapshot: bool = False

    @property
    def whole(self) -> bool:
        """Whether the bytes are those that were written, as far as that can be told."""
        return self.checksum is None or self.checksum == checksum(self.seq, self.data)

    @property
    def kind(self) -> str:
        """What kind of record it is, read from its first bytes; empty where they do not say it."""
        found = None if self.is_snapshot else _TAG.search(self.data[:_BEGINNING])
        return found.group(1).decode() if found else ""

    @property
    def name(self) -> str:
        """What to call it in a message."""
        if self.is_snapshot:
            return f"the snapshot at record {self.seq}"
        return f"record {self.seq} ({self.kind or 'its kind cannot be read'})"


def unharmed(entries: list[Entry], where: str) -> list[bytes]:
    """The bytes of these entries, if all of them are what was written."""
    for entry in entries:
        if not entry.whole:
            raise DamagedJournal(f"{where}: {entry.name} is damaged: its checksum is wrong")
    return [entry.data for entry in entries]


class AsideEntry(NamedTuple):
    """What was taken out of the journal because it could not be used: what it was, when, and why."""

    seq: int
    kind: str
    at: str
    reason: str
    data: bytes
