"""Bytes to messages and back: msgpack with explicit limits, then validation into typed structures.

A packet is a msgpack map: `id` (a number that rises with every packet of one boot), `epoch`, and the fields of
the message with its `kind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

import msgpack
import msgspec

from sojourn.errors import InvalidMessage
from sojourn.messages import BETWEEN, Message, Presence
from sojourn.wire import Epoch, Number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.topics import Address

MAX_PACKET = 8 << 20
MAX_STRING = 64 << 10
MAX_ITEMS = 16 << 10

_T = TypeVar("_T")


class Packet(msgspec.Struct, frozen=True):
    """A message with what every packet carries."""

    id: Number
    epoch: Epoch
    message: Message | Presence


def pack(packet: Packet) -> bytes:
    """The bytes of a packet."""
    fields: dict[str, Any] = {"id": packet.id, "epoch": msgspec.to_builtins(packet.epoch, builtin_types=(bytes,))}
    fields |= msgspec.to_builtins(packet.message, builtin_types=(bytes,))
    data: bytes = msgpack.packb(fields)
    return data


def unpack(data: bytes, sender: Address, to: Address) -> Packet:
    """The packet in these bytes, if it is one that this sender may send to this node."""
    packet = _decode(data, _MESSAGES)
    if (sender.role, to.role) not in BETWEEN[type(packet.message)]:
        raise InvalidMessage(f"a {sender.role} may not send {kind(packet.message)!r} to a {to.role}")
    return packet


def unpack_presence(data: bytes) -> Packet:
    """The birth or death in these bytes."""
    return _decode(data, _PRESENCES)


def kind(message: Message | Presence | type[Message | Presence]) -> str:
    """The name of a message's kind, as it stands on the wire."""
    return str(message.__struct_config__.tag)


class _Header(msgspec.Struct, frozen=True):
    id: Number
    epoch: Epoch


_MESSAGES: dict[str, type[Message]] = {kind(form): form for form in get_args(Message)}
_PRESENCES: dict[str, type[Presence]] = {kind(form): form for form in get_args(Presence)}


def _decode(data: bytes, kinds: Mapping[str, type[Message | Presence]]) -> Packet:
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
        return Packet(header.id, header.epoch, msgspec.convert(fields, form, builtin_types=(bytes,)))
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"{name!r}: {error}") from error


def bounded(data: bytes, largest: int = MAX_PACKET) -> Any:
    """What msgpack says, unless it says too much."""
    if len(data) > largest:
        raise InvalidMessage(f"{len(data)} bytes are more than the limit of {largest}")
    try:
        return msgpack.unpackb(
            data, raw=False, strict_map_key=True, max_str_len=MAX_STRING, max_bin_len=largest,
            max_array_len=MAX_ITEMS, max_map_len=MAX_ITEMS, max_ext_len=0,
        )  # fmt: skip
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise InvalidMessage(f"not valid msgpack: {error or type(error).__name__}") from error


def pack_blob(value: object) -> bytes:
    """A structure as the content of a blob."""
    data: bytes = msgpack.packb(msgspec.to_builtins(value, builtin_types=(bytes,)))
    return data


def unpack_blob(data: bytes, form: type[_T], largest: int = 1 << 30) -> _T:
    """The structure in a blob; a blob's size was agreed on before it was fetched."""
    try:
        fields = msgpack.unpackb(data, raw=False, max_str_len=largest, max_bin_len=largest, max_ext_len=0)
        return msgspec.convert(fields, form, builtin_types=(bytes,))
    except (ValueError, msgpack.UnpackException, msgspec.ValidationError, RecursionError) as error:
        raise InvalidMessage(f"not a valid {form}: {error}") from error
