"""Encode and decode messages: msgpack with explicit limits, then validation into typed structures.

A packet is a msgpack map: `id` (a number that increases with every packet of one boot), `epoch`, and the fields of the
message with its `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import msgpack
import msgspec

from sojourn.errors import InvalidMessage
from sojourn.protocol import limits, mandates, messages, operator_messages, operators, release_messages
from sojourn.protocol.limits import Identity, decoded
from sojourn.protocol.registry import Message, by_kind
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch

MAX_PACKET = limits.MAX_PACKET
MAX_STRING = 64 << 10
MAX_ITEMS = 16 << 10
_FORMS = by_kind(messages, operator_messages, operators, mandates, release_messages)
MESSAGES = {kind: form for kind, form in _FORMS.items() if form.routes}
"""All messages that are sent to an inbox, by kind."""
PRESENCES = {kind: form for kind, form in _FORMS.items() if not form.routes}

_T = TypeVar("_T")


class Packet(msgspec.Struct, frozen=True):
    """A message with the fields that every packet has."""

    id: Identity
    epoch: Epoch
    message: Message


def pack(packet: Packet) -> bytes:
    """Return the bytes of a packet: the message's own map, preceded by two entries."""
    body = _ENCODER.encode(packet.message)
    entries, head = _map_head(body)
    entries += 2
    return b"%b\xa2id%b\xa5epoch%b%b" % (
        b"%c" % (_SMALLEST_FIXMAP + entries) if entries <= _FIXMAP else b"\xde%b" % entries.to_bytes(2),
        _ENCODER.encode(packet.id),
        _ENCODER.encode(packet.epoch),
        body[head:],
    )


def packed_size(number: int, epoch: int, message: Message) -> int:
    """Return the size that `pack` would produce for a packet with this number and an epoch of this size."""
    body = _ENCODER.encode(message)
    entries, head = _map_head(body)
    new_head = 1 if entries + 2 <= _FIXMAP else 3
    return len(body) - head + new_head + len(_ENCODER.encode(number)) + epoch + _KEYS


def _map_head(body: bytes) -> tuple[int, int]:
    """Return the number of entries in a message's map, and the number of bytes that encode it."""
    if body[0] == _MAP_16:
        return int.from_bytes(body[1:3]), 3
    return body[0] - _SMALLEST_FIXMAP, 1


def inlined_size(content: bytes) -> int:
    """Return by how many bytes a message grows if a blob is inlined in one of its references."""
    size = len(content)
    return size + len(b"\xa6inline") + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def unpack(data: bytes, sender: Address, to: Address) -> Packet:
    """Decode a packet; raises InvalidMessage unless this sender may send it to this node."""
    packet = _unpack_canonical(data, _MESSAGE) or _unpack_checked(data, MESSAGES)
    if (sender.role, to.role) not in packet.message.routes:
        raise InvalidMessage(f"a {sender.role} may not send {kind(packet.message)!r} to a {to.role}")
    return packet


def unpack_presence(data: bytes) -> Packet:
    """Decode a birth or death."""
    return _unpack_canonical(data, _PRESENCE) or _unpack_checked(data, PRESENCES)


def kind(message: Message | type[Message]) -> str:
    """Return the name of a message's kind on the wire."""
    return str(message.__struct_config__.tag)


class _Header(msgspec.Struct, frozen=True):
    id: Identity
    epoch: Epoch


_ENCODER = msgspec.msgpack.Encoder()
_SMALLEST_FIXMAP, _FIXMAP, _MAP_16 = 0x80, 15, 0xDE
"""The first bytes of a map with up to 15 entries, and of a larger one."""
_KIND = b"\xa4kind"
_KEYS = len(b"\xa2id\xa5epoch")
_HEADER = msgspec.msgpack.Decoder(_Header)
_MESSAGE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(reduce(or_, MESSAGES.values()))
_PRESENCE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(reduce(or_, PRESENCES.values()))


def _unpack_canonical(data: bytes, decoder: msgspec.msgpack.Decoder[Message]) -> Packet | None:
    """Return the packet if the bytes are short and exactly those that `pack` writes; None for all others.

    Most packets are, and this is the faster way to read them. It is equally strict: bytes that are unchanged after they
    are packed again contain nothing unknown, and short ones have no room for a list or a text beyond the limits.
    """
    start = data.find(_KIND)  # the start of the message's own entries, after `id` and `epoch`
    if start < 0 or len(data) > MAX_ITEMS or data[0] < _SMALLEST_FIXMAP + 2:
        return None
    header_map, message_map = b"\x82" + data[1:start], b"%c%b" % (data[0] - 2, data[start:])
    try:
        header = _HEADER.decode(header_map)
        packet = Packet(header.id, header.epoch, decoder.decode(message_map))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return packet if pack(packet) == data else None


def _unpack_checked(data: bytes, kinds: Mapping[str, type[Message]]) -> Packet:
    """Decode a packet from any msgpack within the limits; entries that this version does not know are ignored."""
    fields = bounded(data)
    if not isinstance(fields, dict):
        raise InvalidMessage("not a msgpack map")
    message = _message_in(fields, kinds)
    try:
        header = msgspec.convert(fields, _Header, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"{kind(message)!r}: {error}") from error
    return Packet(header.id, header.epoch, message)


def unpack_inner(data: bytes) -> Message:
    """Decode a message that another one carries as bytes: a msgpack map with its kind, within a packet's limits."""
    fields = bounded(data)
    return _message_in(fields if isinstance(fields, dict) else {}, MESSAGES)


def _message_in(fields: dict[str, Any], kinds: Mapping[str, type[Message]]) -> Message:
    name = fields.get("kind")
    form = kinds.get(name) if isinstance(name, str) else None
    if form is None:
        raise InvalidMessage(f"unknown kind {str(name)[:64]!r}")
    try:  # convert to one struct rather than to a union, which msgspec would analyse at every call
        return msgspec.convert(fields, form, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"{name!r}: {error}") from error


def bounded(data: bytes) -> Any:
    """Decode msgpack within the limits."""
    if len(data) > MAX_PACKET:
        raise InvalidMessage(f"{len(data)} bytes are more than the limit of {MAX_PACKET}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_STRING,
            max_bin_len=MAX_PACKET,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidMessage(f"not valid msgpack: {error or type(error).__name__}") from error


def pack_blob(value: object) -> bytes:
    """Encode a structure as the content of a blob."""
    return _ENCODER.encode(value)


def unpack_blob(data: bytes, form: type[_T], largest: int = 1 << 30) -> _T:
    """Decode the structure in a blob of at most `largest` bytes.

    It is decoded directly into its type, and unknown entries are skipped or refused at once, so that it takes only a
    few times the blob's size. Decoded into lists and maps first, 100 MB of empty ones would take 7 GB.
    """
    if len(data) > largest:
        raise InvalidMessage(f"a blob of {len(data)} bytes is more than the limit of {largest}")
    try:
        return decoded(data, form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidMessage(f"not a valid {form}: {error}") from error
