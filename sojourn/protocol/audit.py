"""The audit log: every act of an operator, each entry with the hash of the one before.

Whoever changes, removes or adds an entry breaks the chain there, or has to write all later ones anew; and nobody can
invent an act that carries an operator's signature. That the newest entries were cut off only shows to somebody who has
kept an earlier hash.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import msgspec

from sojourn.protocol.limits import Label, Moment, Name, Number, Text
from sojourn.protocol.operators import RequestSignature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sojourn.protocol.operators import OperatorEntry

Hash = Annotated[bytes, msgspec.Meta(max_length=32)]
DONE, REFUSED = "done", "refused"


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """One act: who did what, when, and how it ended."""

    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    at: Moment
    who: Label
    """The operator's name: proven where there is a signature, else as the broker lets it be written."""
    what: Label
    outcome: Label
    """`done` or `refused`."""
    detail: Text
    ticket: Label
    proof: RequestSignature | None
    before: Hash
    """The hash of the entry before; empty for the first."""

    @property
    def digest(self) -> bytes:
        """The hash of this entry, which the next one carries."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


class InspectAudit(msgspec.Struct, frozen=True, tag="inspect-audit", tag_field="kind"):
    """Tell the audit log, the entries after this number."""

    ticket: Name
    after: Number = 0


class Audit(msgspec.Struct, frozen=True, tag="audit", tag_field="kind"):
    """The answer to `inspect-audit`: a page of the log, the oldest entry first."""

    ticket: Name
    entries: Annotated[tuple[AuditEntry, ...], msgspec.Meta(max_length=1000)]
    more: bool = False
    """Whether others follow."""


def faults(entries: Sequence[AuditEntry], operators: Mapping[str, OperatorEntry] | None = None) -> list[str]:
    """What is wrong with a log, each with where it is; with operators, their signatures are checked, too."""
    found = []
    before: AuditEntry | None = None
    for entry in entries:
        if before is None:
            if entry.number == 1 and entry.before:
                found.append("entry 1 says that there was one before it")
        elif entry.number != before.number + 1:
            found.append(f"entries are missing between {before.number} and {entry.number}")
        elif entry.before != before.digest:
            found.append(f"entry {before.number} was changed, or {entry.number} does not follow it")
        if wrong := _forged(entry, operators):
            found.append(f"entry {entry.number}: {wrong}")
        before = entry
    return found


def _forged(entry: AuditEntry, operators: Mapping[str, OperatorEntry] | None) -> str | None:
    if entry.proof is None:
        return None
    request = entry.proof.read()
    if request is None or (request.operator, request.what, request.ticket) != (entry.who, entry.what, entry.ticket):
        return "its signature is for something else"
    if operators is None or entry.who not in operators:
        return None  # a key that was replaced cannot be looked up any more
    signed = entry.proof.signed_by(operators[entry.who].key)
    return None if signed else f"its signature is not of the key that {entry.who} has now"
