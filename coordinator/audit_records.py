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

    def find(self, who: str, ticket: str, what: str, *, proven: bool) -> AuditEntry | None:
        """The entry of an operator's request, if that was answered before.

        Of a request that is proven only what was proven counts: anybody can have another's name refused.
        """
        asked = (ticket, who, what, proven)
        recent = reversed(self.entries[-RECENT:])
        return next((it for it in recent if (it.ticket, it.who, it.what, it.proof is not None) == asked), None)

    @property
    def next_number(self) -> int:
        """The number of the next entry."""
        return self.entries[-1].number + 1 if self.entries else 1

    @property
    def head(self) -> bytes:
        """The hash that the next entry carries."""
        return self.entries[-1].digest if self.entries else b""
