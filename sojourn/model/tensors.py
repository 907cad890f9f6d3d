"""A tensor in an ONNX file: its numbers are in the file, as many as its shape says, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused
from sojourn.model import onnx_form as form

if TYPE_CHECKING:
    from sojourn.model.protobuf import Message, WireReader

FLOAT, INT64 = 1, 7
MOST_NUMBERS_KNOWN = 64
"""Constants with more numbers than this are no shape and no length."""
_DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FIXED = {"float_data": 4, "double_data": 8}


@dataclass(frozen=True)
class ElementType:
    """A type of numbers: its name, the bytes of one, and the field that holds them where they are not raw."""

    name: str
    size: int
    held_in: str


TYPES = {
    1: ElementType("float32", 4, "float_data"),
    2: ElementType("uint8", 1, "int32_data"),
    3: ElementType("int8", 1, "int32_data"),
    4: ElementType("uint16", 2, "int32_data"),
    5: ElementType("int16", 2, "int32_data"),
    6: ElementType("int32", 4, "int32_data"),
    7: ElementType("int64", 8, "int64_data"),
    9: ElementType("bool", 1, "int32_data"),
    10: ElementType("float16", 2, "int32_data"),
    11: ElementType("float64", 8, "double_data"),
    12: ElementType("uint32", 4, "uint64_data"),
    13: ElementType("uint64", 8, "uint64_data"),
    16: ElementType("bfloat16", 2, "int32_data"),
}
"""By ONNX's numbers. No texts, no complex numbers, and none of less than a byte."""


def check_tensor(tensor: Message, reader: WireReader, where: str) -> None:
    """Refuse a tensor whose data is elsewhere, or is not what its shape and its type say."""
    # However it is told, and whatever else it holds: onnxruntime would open the file that it names.
    if "external_data" in tensor or tensor.number("data_location") != 0:
        raise GraphRefused(f"{where} has its data in another file: all data must be in the graph")
    if "segment" in tensor or "string_data" in tensor:
        raise GraphRefused(f"{where} comes in pieces, or holds texts: neither is allowed")
    kind = TYPES.get(tensor.number("data_type"))
    if kind is None:
        raise GraphRefused(f"{where} is of type {tensor.number('data_type')}, which is not allowed")
    numbers = _size(tensor, where)
    held = [name for name in _DATA if tensor.size(name)]
    if len(held) > 1 or (held and held[0] not in ("raw_data", kind.held_in)):
        raise GraphRefused(f"{where} of {kind.name} has its data in {' and '.join(held)}")
    found = _held(tensor, held[0], kind, reader) if held else 0
    if found != numbers:
        raise GraphRefused(f"{where} holds {found:g} numbers of {kind.name}, and its shape is of {numbers}")


def whole_numbers(tensor: Message, reader: WireReader) -> tuple[int, ...] | None:
    """The numbers of a small tensor of int32 or int64, which may be a shape or a length; None for all others."""
    kind = TYPES[tensor.number("data_type")]
    if kind.name not in ("int32", "int64") or _size(tensor, "") > MOST_NUMBERS_KNOWN:
        return None
    if tensor.size("raw_data"):
        start, end = tensor.span("raw_data")
        raw = reader.data[start:end]
        return tuple(
            int.from_bytes(raw[at : at + kind.size], "little", signed=True) for at in range(0, len(raw), kind.size)
        )
    return tuple(reader.varints(*tensor.span(kind.held_in), MOST_NUMBERS_KNOWN))


def _size(tensor: Message, where: str) -> int:
    axes = tensor.numbers("dims", form.MOST_DIMENSIONS)
    if any(axis < 0 for axis in axes):
        raise GraphRefused(f"{where} has an axis of {min(axes)}")
    return prod(axes)


def _held(tensor: Message, name: str, kind: ElementType, reader: WireReader) -> float:
    """How many numbers there are; a fraction where the bytes do not come out even."""
    if name == "raw_data":
        return tensor.size(name) / kind.size
    if name in _FIXED:
        return tensor.size(name) / _FIXED[name]
    return reader.count_varints(*tensor.span(name))
