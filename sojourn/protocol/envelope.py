"""Bytes to messages and back: msgpack with explicit limits, then validation into typed structures.

A packet is a msgpack map: `id` (a number that rises with every packet of one boot), `epoch`, and the fields of
the message with its `kind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgpack
import msgspec

from sojourn.errors import InvalidMessage
from sojourn.protocol import limits
from sojourn.protocol.decoders import decoded
from sojourn.protocol.limits import Identity
from sojourn.protocol.mending import mended
from sojourn.protocol.messages import BETWEEN, Message, Presence
from sojourn.protocol.wire import Epoch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.protocol.topics import Address

MAX_PACKET = limits.MAX_PACKET
MAX_STRING = 64 << 10
MAX_ITEMS = 16 << 10

_T = TypeVar("_T")


class Packet(msgspec.Struct, frozen=True):
    """A message with what every packet carries."""

    id: Identity
    epoch: Epoch
    message: Message | Presence


def pack(packet: Packet) -> bytes:
    """The bytes of a packet: the message's own map, with two entries more in front."""
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
    """How many bytes `pack` would make of a packet of this number, with an epoch that takes so many."""
    body = _ENCODER.encode(message)
    entries, head = _map_head(body)
    new_head = 1 if entries + 2 <= _FIXMAP else 3
    return len(body) - head + new_head + len(_ENCODER.encode(number)) + epoch + _KEYS


def _map_head(body: bytes) -> tuple[int, int]:
    """How many entries a message's own map has, and how many bytes say so."""
    if body[0] == _MAP_16:
        return int.from_bytes(body[1:3]), 3
    return body[0] - _SMALLEST_FIXMAP, 1


def inlined_size(content: bytes) -> int:
    """How many bytes a message grows by when a blob rides along in one of its references."""
    size = len(content)
    return size + len(b"\xa6inline") + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


def unpack(data: bytes, sender: Address, to: Address, *, mend: bool = False) -> Packet:
    """The packet in these bytes, if it is one that this sender may send to this node.

    mend: from nodes that may know only the first version of the wire, bring what breaks today's limits within them.
    """
    packet = _unpack_canonical(data, _MESSAGE) or _unpack_checked(data, _MESSAGES, mend=mend)
    if (sender.role, to.role) not in BETWEEN[type(packet.message)]:
        raise InvalidMessage(f"a {sender.role} may not send {kind(packet.message)!r} to a {to.role}")
    return packet


def unpack_presence(data: bytes) -> Packet:
    """The birth or death in these bytes; a birth that names no version of the wire is of the first, and is mended."""
    return _unpack_canonical(data, _PRESENCE) or _unpack_checked(data, _PRESENCES, mend=True)


def kind(message: Message | Presence | type[Message | Presence]) -> str:
    """The name of a message's kind, as it stands on the wire."""
    return str(message.__struct_config__.tag)


class _Header(msgspec.Struct, frozen=True):
    id: Identity
    epoch: Epoch


_ENCODER = msgspec.msgpack.Encoder()
_SMALLEST_FIXMAP, _FIXMAP, _MAP_16 = 0x80, 15, 0xDE
"""How a map of at most 15 entries begins, and how a longer one."""
_KIND = b"\xa4kind"
_KEYS = len(b"\xa2id\xa5epoch")
_MESSAGES: dict[str, type[Message]] = {kind(form): form for form in get_args(Message)}
_PRESENCES: dict[str, type[Presence]] = {kind(form): form for form in get_args(Presence)}
_HEADER = msgspec.msgpack.Decoder(_Header)
_MESSAGE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_PRESENCE: msgspec.msgpack.Decoder[Presence] = msgspec.msgpack.Decoder(Presence)


def _unpack_canonical(data: bytes, decoder: msgspec.msgpack.Decoder[Any]) -> Packet | None:
    """The packet, if the bytes are exactly those that `pack` writes, and short; None for all others.

    Most packets are, and this is the quicker way to read them. It is as strict: bytes that come out the same when they
    are packed again hold nothing unknown, and short ones have no room for a list or a text beyond the limits.
    """
    start = data.find(_KIND)  # of the message's own entries, after `id` and `epoch`
    if start < 0 or len(data) > MAX_ITEMS or data[0] < _SMALLEST_FIXMAP + 2:
        return None
    header_map, message_map = b"\x82" + data[1:start], b"%c%b" % (data[0] - 2, data[start:])
    try:
        header = _HEADER.decode(header_map)
        packet = Packet(header.id, header.epoch, decoder.decode(message_map))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return packet if pack(packet) == data else None


def _unpack_checked(data: bytes, kinds: Mapping[str, type[Message | Presence]], *, mend: bool) -> Packet:
    """The packet in any msgpack that keeps to the limits; entries that this version does not know are passed over."""
    fields = bounded(data)
    if not isinstance(fields, dict):
        raise InvalidMessage("not a msgpack map")
    name = fields.get("kind")
    form = kinds.get(name) if isinstance(name, str) else None
    if form is None:
        raise InvalidMessage(f"unknown kind {str(name)[:64]!r}")
    try:
        # Struct by struct rather than as one union: msgspec analyses a union anew at every call.
        header = msgspec.convert(fields, _Header, builtin_types=(bytes,))
        return Packet(header.id, header.epoch, _converted(fields, form, mend=mend and fields.get("wire", 1) == 1))
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"{name!r}: {error}") from error


def unpack_inner(data: bytes) -> Message:
    """A message that another one carries as bytes: a msgpack map with its kind, within the limits of a packet."""
    fields = bounded(data)
    name = fields.get("kind") if isinstance(fields, dict) else None
    form = _MESSAGES.get(name) if isinstance(name, str) else None
    if form is None:
        raise InvalidMessage(f"unknown kind {str(name)[:64]!r}")
    try:
        return msgspec.convert(fields, form, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"{name!r}: {error}") from error


def _converted(fields: dict[str, Any], form: type[Message | Presence], *, mend: bool) -> Message | Presence:
    try:
        return msgspec.convert(fields, form, builtin_types=(bytes,))
    except msgspec.ValidationError:
        if not mend:
            raise
        found: Message | Presence = mended(fields, form)
        return found


def bounded(data: bytes, largest: int = MAX_PACKET) -> Any:
    """What msgpack says, unless it says too much."""
    if len(data) > largest:
        raise InvalidMessage(f"{len(data)} bytes are more than the limit of {largest}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=MAX_STRING,
            max_bin_len=largest,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidMessage(f"not valid msgpack: {error or type(error).__name__}") from error


def pack_blob(value: object) -> bytes:
    """A structure as the content of a blob."""
    return _ENCODER.encode(value)


def unpack_blob(data: bytes, form: type[_T], largest: int = 1 << 30) -> _T:
    """The structure in a blob of at most `largest` bytes.

    It is read straight into its form, and whatever does not belong there is passed over or refused where it stands: so
    it takes a few times the blob's size, whatever is in it. Read into lists and maps first, 100 MB of empty ones would
    take 7 GB. What an older node wrote under wider limits is mended, if it is small.
    """
    if len(data) > largest:
        raise InvalidMessage(f"a blob of {len(data)} bytes is more than the limit of {largest}")
    try:
        return decoded(data, form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            return mended(bounded(data), form)  # type: ignore[no-any-return]
        except (msgspec.ValidationError, InvalidMessage):
            raise InvalidMessage(f"not a valid {form}: {error}") from error
