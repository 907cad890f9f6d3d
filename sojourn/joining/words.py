"""What is said at a fleet's door: one request, one answer, and the connection is over. All of it is small and bounded.

A frame is four bytes of length and a msgpack map with its `kind`. Who asks signs with its own key, so that nobody can
ask in its name.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from sojourn.errors import InvalidMessage
from sojourn.protocol.limits import Duration, Label, Name, Text
from sojourn.protocol.signed_hop import NodeSignature, PublicKey

MOST_BYTES = 16 << 10
"""Of a frame in either direction; certificates and requests for them have about one thousand."""
LENGTH_BYTES = 4
Stamp = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
Pem = Annotated[bytes, msgspec.Meta(max_length=8 << 10)]


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="kind", forbid_unknown_fields=True):
    """Whom do you trust? Asked before anything else, and by whoever knows only a fingerprint."""


class Join(msgspec.Struct, frozen=True, tag="join", tag_field="kind", forbid_unknown_fields=True):
    """Let me in, by this invitation; asked again until there is an answer.

    name: what the device would like to be called. request: a certificate signing request with the key that it will show
    to the broker. signature: with its node key, over all of this without the signature.
    """

    secret: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    node_key: PublicKey
    request: Pem
    name: Name
    about: Label
    signature: NodeSignature = b"\0" * 64


class CertificateCheck(msgspec.Struct, frozen=True, tag="check", tag_field="kind", forbid_unknown_fields=True):
    """Is my certificate good for some time? Asked over mutual TLS, with the stamp of last time and the next one."""

    node_key: PublicKey
    stamp: Stamp
    next: Stamp
    signature: NodeSignature = b"\0" * 64


class Renew(msgspec.Struct, frozen=True, tag="renew", tag_field="kind", forbid_unknown_fields=True):
    """A new certificate, please: asked over mutual TLS, with the old one."""

    node_key: PublicKey
    request: Pem
    signature: NodeSignature = b"\0" * 64


class Return(msgspec.Struct, frozen=True, tag="return", tag_field="kind", forbid_unknown_fields=True):
    """My certificate has ended while I was away: an operator may let me in again."""

    node_key: PublicKey
    request: Pem
    about: Label
    signature: NodeSignature = b"\0" * 64


class Authorities(msgspec.Struct, frozen=True, tag="trust", tag_field="kind"):
    """The answer to `hello`: the certificates of the fleet's authorities."""

    authorities: Pem


class RequestNoted(msgspec.Struct, frozen=True, tag="waiting", tag_field="kind"):
    """The request is noted under this name; an operator has to accept it."""

    name: Name
    again: Duration
    """Ask again after so many seconds."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="kind"):
    """You are a member: your certificate, and what you need to know of the fleet."""

    name: Name
    fleet: Name
    certificate: Pem
    authorities: Pem
    host: Label
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    edges: Annotated[tuple[Name, ...], msgspec.Meta(max_length=256)]
    keys: Annotated[dict[Name, Label], msgspec.Meta(max_length=8)]
    """The public keys of those whose orders count, by what they sign: `release`."""
    data: Label = ""
    """Where its data is, if the invitation says so."""
    operators: Pem = b""
    """The public keys of those who may sign jobs, one in a line; none where nobody does."""


class Valid(msgspec.Struct, frozen=True, tag="valid", tag_field="kind"):
    """The certificate is good; ask again after so many seconds, or have it renewed if that is `due`."""

    again: Duration
    due: bool
    authorities: Pem


class Turned(msgspec.Struct, frozen=True, tag="turned-away", tag_field="kind"):
    """No, and why."""

    reason: Text
    final: bool = True
    """Whether asking again is of no use."""


Request = Hello | Join | CertificateCheck | Renew | Return
Answer = Authorities | RequestNoted | Welcome | Valid | Turned
_REQUEST: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def framed(message: Request | Answer) -> bytes:
    """The bytes of one frame."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body


def length_of(head: bytes) -> int:
    """How many bytes follow; InvalidMessage if they are too many."""
    length = int.from_bytes(head)
    if not 0 < length <= MOST_BYTES:
        raise InvalidMessage(f"a frame of {length} bytes: at most {MOST_BYTES} are read")
    return length


def read_request(body: bytes) -> Request:
    """What a stranger asks, if it is a request at all."""
    return _read(_REQUEST, body)  # type: ignore[no-any-return]


def read_answer(body: bytes) -> Answer:
    """What the door answers."""
    return _read(_ANSWER, body)  # type: ignore[no-any-return]


def signed_part(message: Join | CertificateCheck | Renew | Return) -> bytes:
    """What the signature is over: the message as it is with none."""
    return msgspec.msgpack.encode(msgspec.structs.replace(message, signature=b"\0" * 64))


def _read(decoder: msgspec.msgpack.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"not something that is said at a door: {error}") from error
