"""Operators: who may ask what of a coordinator, by the key that signs what they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from sojourn.protocol.decoders import decoded
from sojourn.protocol.limits import Data, Label, Moment, Name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.protocol.signing import Signer

OperatorRole = Literal["viewer", "submitter", "releaser", "owner"]
REQUEST_CONTEXT = b"sojourn-request-1"
SIGNATURE_BYTES = 64


class OperatorEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One operator: a public key and a role."""

    key: str
    """The public key, in base64."""
    role: OperatorRole
    """`viewer` sees; `submitter` also submits, signs, stops and exports jobs; `releaser` also makes releases and brings
    them to devices; `owner` may do all."""
    added: str = ""
    """When."""


class OperatorsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file `operators.toml`."""

    operators: dict[Name, OperatorEntry] = {}


class Request(msgspec.Struct, frozen=True, array_like=True):
    """What an operator signs: who asks what of which coordinator, and when; the message itself by its digest."""

    fleet: Name
    cloud: Name
    operator: Name
    at: Moment
    ticket: Name
    what: Label
    """In words, as the audit log has it: `stop digits`."""
    digest: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    """SHA-256 of the message."""


class RequestSignature(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of a request, and their signature."""

    request: Annotated[bytes, msgspec.Meta(max_length=1000)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    def read(self) -> Request | None:
        """What it says, whoever signed it; None where that is no request."""
        try:
            return decoded(self.request, Request)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def signed_by(self, public: str) -> bool:
        """Whether the holder of this key signed it."""
        from sojourn.protocol.signing import verify  # noqa: PLC0415  # cryptography only where keys are

        return verify(public, self.request, self.signature, REQUEST_CONTEXT)


class SignedRequest(msgspec.Struct, frozen=True, tag="signed-request", tag_field="kind"):
    """A message of an operator with the operator's signature. Answered as the message is."""

    ticket: Name
    message: Data
    """The message as a msgpack map, with its kind."""
    proof: RequestSignature


def sign_request(request: Request, signer: Signer) -> RequestSignature:
    """The request with its signature."""
    data = msgspec.msgpack.encode(request)
    return RequestSignature(data, signer.sign(data, REQUEST_CONTEXT))


def mandate_keys(operators: Mapping[str, OperatorEntry]) -> dict[str, str]:
    """The keys that devices should trust: of those who may sign jobs, with their names."""
    return {each.key: name for name, each in sorted(operators.items()) if each.role in ("submitter", "owner")}
