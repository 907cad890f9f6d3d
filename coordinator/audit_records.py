"""The audit log as a coordinator keeps it: one record for each act, and the newest entries in its state."""

from __future__ import annotations

import msgspec

from sojourn.protocol.audit import AuditEntry

KEPT = 10_000
"""At most so many entries are kept; the oldest go first, and the chain goes on from the first that is left."""
RECENT = 1000
"""Among so many of the newest an act is looked for that was asked for before."""


class ActLogged(msgspec.Struct, frozen=True, tag="act-logged/1"):
    """An operator's act, answered."""

    entry: AuditEntry


class AuditLog(msgspec.Struct):
    """The newest entries, oldest first."""

    entries: list[AuditEntry] = []

    def apply(self, record: ActLogged) -> None:
        """Add one."""
        self.entries.append(record.entry)
        if len(self.entries) > KEPT:
            del self.entries[: len(self.entries) - KEPT]

    def has(self, who: str, ticket: str) -> bool:
        """Whether an operator's request was answered before."""
        return any(it.ticket == ticket and it.who == who for it in self.entries[-RECENT:])

    @property
    def next_number(self) -> int:
        """The number of the next entry."""
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def head(self) -> bytes:
        """The hash that the next entry carries."""
        return self.entries[-1].digest if self.entries else b""
