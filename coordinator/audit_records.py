"""The coordinator's audit log: one record for each action, and the newest entries in its state."""

from __future__ import annotations

import msgspec

from sojourn.protocol.operators import AuditEntry

KEPT = 10_000
"""Maximum number of stored entries; the oldest are dropped first, and the chain continues from the first that is
left."""
RECENT = 1000
"""Number of newest entries that are searched for a repeated request."""


class AuditRecorded(msgspec.Struct, frozen=True, tag="audit-recorded/1"):
    """An operator's action was answered."""

    entry: AuditEntry


class AuditLog(msgspec.Struct):
    """The newest entries, oldest first."""

    entries: list[AuditEntry] = []

    def apply(self, record: AuditRecorded) -> None:
        """Add an entry."""
        self.entries.append(record.entry)
        if len(self.entries) > KEPT:
            del self.entries[: len(self.entries) - KEPT]

    def find(self, who: str, ticket: str, what: str, *, proven: bool) -> AuditEntry | None:
        """Return the entry of an operator's request, if it was answered before.

        A proven request matches only proven entries, since any client can cause a refusal under another's name.
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
        """The hash that the next entry contains."""
        return self.entries[-1].digest if self.entries else b""
