"""Operators: their roles at a coordinator, signed requests, and the audit log of every action."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from sojourn.protocol.limits import Data, Digest, Ed25519Signature, Label, Moment, Name, Number, Text, decoded_or_none
from sojourn.protocol.registry import ANY_ROLE, SUBMITTERS, Answer, OperatorRequest, OperatorRole

if TYPE_CHECKING:
    from sojourn.protocol.signing import Signer


REQUEST_CONTEXT = b"sojourn-request-1"


class OperatorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One operator: a public key and a role."""

    key: str
    """The public key, in base64."""
    role: OperatorRole
    """`viewer` may read; `submitter` may also submit, sign, stop and export jobs; `releaser` may also make releases and
    bring them to devices; `owner` may do everything."""
    added: str = ""
    """The date of the entry."""


class OperatorsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file `operators.toml`."""

    operators: dict[Name, OperatorEntry] = {}


class Request(msgspec.Struct, frozen=True, array_like=True):
    """The statement that an operator signs: operator, coordinator, date, request, and the message's digest."""

    fleet: Name
    cloud: Name
    operator: Name
    at: Moment
    ticket: Name
    what: Label
    """A short text, as in the audit log: `stop digits`."""
    digest: Digest
    """SHA-256 of the message."""


class RequestSignature(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of a request, and their signature."""

    request: Annotated[bytes, msgspec.Meta(max_length=1000)]
    signature: Ed25519Signature

    def read(self) -> Request | None:
        """Return the request, without checking its signature; None if it cannot be read."""
        return decoded_or_none(self.request, Request)

    def signed_by(self, public: str) -> bool:
        """Return whether the holder of this key signed it."""
        from sojourn.protocol.signing import verify  # noqa: PLC0415  # imports cryptography only if needed

        return verify(public, self.request, self.signature, REQUEST_CONTEXT)


class SignedRequest(OperatorRequest[Answer], frozen=True, tag="signed-request"):
    """A message of an operator with the operator's signature. It has the same answer as the message."""

    roles = ()
    """Empty, since the roles of the message count."""

    message: Data
    """The message as a msgpack map, with its kind."""
    proof: RequestSignature


def sign_request(request: Request, signer: Signer) -> RequestSignature:
    """Sign a request."""
    data = msgspec.msgpack.encode(request)
    return RequestSignature(data, signer.sign(data, REQUEST_CONTEXT))


def mandate_keys(operators: Mapping[str, OperatorEntry]) -> dict[str, str]:
    """Return the keys that devices should trust, of operators who may sign jobs, with their names."""
    return {each.key: name for name, each in sorted(operators.items()) if each.role in SUBMITTERS}


# The audit log: every action of an operator, each entry with the hash of the one before.
#
# Changing, removing or adding an entry breaks the chain there, unless all later ones are rewritten; and nothing can
# forge an action with an operator's signature. Removing the newest entries can only be detected with an earlier hash.

Hash = Annotated[bytes, msgspec.Meta(max_length=32)]
DONE, REFUSED = "done", "refused"


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """An action of an operator, with its date and outcome."""

    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    at: Moment
    who: Label
    """The operator's name: proven by a signature, otherwise only as reliable as the broker's access control."""
    what: Label
    outcome: Label
    """`done` or `refused`."""
    detail: Text
    ticket: Label
    proof: RequestSignature | None
    before: Hash
    """The hash of the previous entry; empty for the first."""

    @property
    def digest(self) -> bytes:
        """The hash of this entry, which the next one contains."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


class Audit(Answer, frozen=True, tag="audit"):
    """The answer to `inspect-audit`: a page of the log, the oldest entry first."""

    verbatim = True
    entries: Annotated[tuple[AuditEntry, ...], msgspec.Meta(max_length=1000)]
    more: bool = False
    """Whether more entries follow."""


class InspectAudit(OperatorRequest[Audit], frozen=True, tag="inspect-audit"):
    """Request the audit log after this entry number."""

    roles = ANY_ROLE
    after: Number = 0


def faults(entries: Sequence[AuditEntry], operators: Mapping[str, OperatorEntry] | None = None) -> list[str]:
    """Return the faults of a log with their positions; with operators, signatures are checked as well."""
    found = []
    before: AuditEntry | None = None
    for entry in entries:
        if before is None:
            if entry.number == 1 and entry.before:
                found.append("entry 1 refers to an entry before it")
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
        return "its signature is for another action"
    if operators is None or entry.who not in operators:
        return None  # a replaced key is no longer available
    signed = entry.proof.signed_by(operators[entry.who].key)
    return None if signed else f"its signature does not match the current key of {entry.who}"
