"""The join protocol: tokens, and the requests and replies of the door."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import zlib
from typing import Annotated, Any

import msgspec

from sojourn.errors import ConfigError, InvalidMessage
from sojourn.links.settings import Port
from sojourn.protocol.limits import Duration, Ed25519Signature, Label, Name, PublicKey, Text

# A token is one line that a person copies to a device. It contains the address of the door, the fingerprint of the
# authority that issued the door's certificate, and the secret of an invitation.

PREFIX = "sojourn-join-1."
"""The prefix of a token; the number is the version of its format."""
FINGERPRINT_BYTES = 16
"""Bytes of SHA-256, enough against a second preimage."""
_SECRET_BYTES = 16
_CHECK_BYTES = 4
_LONGEST = 1000


class Token(msgspec.Struct, frozen=True, array_like=True):
    """The address of the door, the fingerprint of its authority, and the secret of an invitation."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    port: Port
    authority: Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
    secret: Annotated[bytes, msgspec.Meta(min_length=_SECRET_BYTES, max_length=_SECRET_BYTES)]

    def __repr__(self) -> str:
        return f"Token(host={self.host!r}, port={self.port})"

    @property
    def text(self) -> str:
        """The token as text."""
        body = msgspec.msgpack.encode(self)
        check = zlib.crc32(body).to_bytes(_CHECK_BYTES)
        return PREFIX + base64.urlsafe_b64encode(body + check).decode().rstrip("=")


def new_secret() -> bytes:
    """Return a random secret."""
    return secrets.token_bytes(_SECRET_BYTES)


def invitation_id(secret: bytes) -> str:
    """Return the id of an invitation, derived from its secret, which is not stored."""
    return hashlib.sha256(b"sojourn-invitation" + secret).hexdigest()[:32]


def read_token(text: str) -> Token:
    """Parse a token; raise ConfigError if it is invalid."""
    text = text.strip()
    if not text.startswith(PREFIX) or len(text) > _LONGEST:
        raise ConfigError(f"this is not a token: tokens begin with {PREFIX!r}, as printed by `sojourn fleet invite`")
    body = text.removeprefix(PREFIX)
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        if zlib.crc32(data[:-_CHECK_BYTES]).to_bytes(_CHECK_BYTES) != data[-_CHECK_BYTES:]:
            raise ConfigError("the token is incomplete: copy the whole line, or paste it from a file")
        return msgspec.msgpack.decode(data[:-_CHECK_BYTES], type=Token)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("the token is incomplete: copy the whole line, or paste it from a file") from error


# The protocol of the door: one request and one reply per connection, both of bounded size.
#
# A frame is four bytes of length and a msgpack map with its `kind`. Nodes sign requests with their own keys, so that no
# other node can send requests in their name.

MAX_BYTES = 16 << 10
"""Maximum bytes of a frame in either direction; certificates and requests need about one thousand."""
LENGTH_BYTES = 4
NO_SIGNATURE = bytes(64)
Stamp = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Pem = Annotated[bytes, msgspec.Meta(max_length=8 << 10)]


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="kind", forbid_unknown_fields=True):
    """Request the authorities' certificates, before anything else, with only a fingerprint known."""


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="kind", forbid_unknown_fields=True):
    """Request to join with an invitation; repeated until it is decided.

    name: the wanted name. request: a certificate signing request with the key for TLS with the broker. signature: by
    the node key, over the message without the signature.
    """

    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    node_key: PublicKey
    request: Pem
    name: Name
    about: Label
    signature: Ed25519Signature = NO_SIGNATURE


class CertificateCheck(msgspec.Struct, frozen=True, tag="check", tag_field="kind", forbid_unknown_fields=True):
    """Check the certificate, over mutual TLS, with the last stamp and the next one."""

    node_key: PublicKey
    stamp: Stamp
    next: Stamp
    signature: Ed25519Signature = NO_SIGNATURE


class Renew(msgspec.Struct, frozen=True, tag="renew", tag_field="kind", forbid_unknown_fields=True):
    """Request a new certificate, over mutual TLS with the old one."""

    node_key: PublicKey
    request: Pem
    signature: Ed25519Signature = NO_SIGNATURE


class Return(msgspec.Struct, frozen=True, tag="return", tag_field="kind", forbid_unknown_fields=True):
    """Request to be accepted again after the certificate has expired."""

    node_key: PublicKey
    request: Pem
    about: Label
    signature: Ed25519Signature = NO_SIGNATURE


class Authorities(msgspec.Struct, frozen=True, tag="trust", tag_field="kind"):
    """The reply to `hello`: the certificates of the fleet's authorities."""

    authorities: Pem


class RequestPending(msgspec.Struct, frozen=True, tag="waiting", tag_field="kind"):
    """The request is stored under this name and waits for an operator."""

    name: Name
    again: Duration
    """Seconds until the next request."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="kind"):
    """The node is a member: its certificate, and the fleet's settings for it."""

    name: Name
    fleet: Name
    certificate: Pem
    authorities: Pem
    host: Label
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    edges: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)]
    keys: Annotated[dict[Name, Label], msgspec.Meta(max_length=8)]
    """The trusted public keys by purpose: `release`."""
    data: Label = ""
    """The data path, if the invitation sets it."""
    operators: Pem = b""
    """The public keys of operators that sign jobs, one per line; empty if jobs are not signed."""


class Valid(msgspec.Struct, frozen=True, tag="valid", tag_field="kind"):
    """The certificate is valid; check again after `again` seconds, or renew it now if `due`."""

    again: Duration
    due: bool
    authorities: Pem


class Rejected(msgspec.Struct, frozen=True, tag="rejected", tag_field="kind"):
    """The request is rejected, with the reason."""

    reason: Text
    final: bool = True
    """Whether a retry is useless."""


Request = Hello | Join | CertificateCheck | Renew | Return
Answer = Authorities | RequestPending | Welcome | Valid | Rejected
_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def framed(message: Request | Answer) -> bytes:
    """Encode a frame."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body


def length_of(head: bytes) -> int:
    """Return the number of bytes that follow; raise InvalidMessage if they are too many."""
    length = int.from_bytes(head)
    if not 0 < length <= MAX_BYTES:
        raise InvalidMessage(f"a frame of {length} bytes: the maximum is {MAX_BYTES}")
    return length


def read_request(body: bytes) -> Request:
    """Decode an untrusted request."""
    return _read(_REQUEST, body)  # type: ignore[no-any-return]


def read_answer(body: bytes) -> Answer:
    """Decode a reply of the door."""
    return _read(_ANSWER, body)  # type: ignore[no-any-return]


def signed_part(message: Join | CertificateCheck | Renew | Return) -> bytes:
    """Return the signed bytes: the message with an empty signature."""
    return msgspec.msgpack.encode(msgspec.structs.replace(message, signature=NO_SIGNATURE))


def _read(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"not a message of the join protocol: {error}") from error
