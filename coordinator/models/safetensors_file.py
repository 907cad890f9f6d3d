"""Reads a safetensors file: eight bytes with the length of a header, the header in JSON, then the numbers.

A stranger may have written it: every number in the header is checked against what is there before it is used.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
import torch

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

LENGTH = 8
LONGEST_HEADER = 16 << 20
MOST_TENSORS = 1 << 16
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class TensorPlace(msgspec.Struct, frozen=True):
    """Where a tensor stands in the file, counted from the end of the header."""

    dtype: str
    shape: Annotated[tuple[Whole, ...], msgspec.Meta(max_length=16)]
    data_offsets: tuple[Whole, Whole]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file by name; ModelError where it is not what the format says."""
    with path.open("rb") as file:
        entries = _header(file, path)
        begin, size = file.tell(), path.stat().st_size
        _check_places(entries, size - begin, path)
        return {name: _tensor(file, begin, name, entry, path) for name, entry in entries.items()}


def _header(file: BinaryIO, path: Path) -> dict[str, TensorPlace]:
    length = int.from_bytes(file.read(LENGTH), "little")
    left = path.stat().st_size - LENGTH
    if not 0 < length <= min(left, LONGEST_HEADER):
        raise ModelError(
            f"{path}: no safetensors file, or cut off: its header would have {length:,} bytes, {max(left, 0):,} follow"
        )
    try:
        found: dict[str, Any] = msgspec.json.decode(file.read(length), type=dict[str, Any])
        found.pop("__metadata__", None)
        entries = msgspec.convert(found, dict[str, TensorPlace])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: no safetensors file: its header cannot be read: {error}") from error
    if not 0 < len(entries) <= MOST_TENSORS:
        raise ModelError(f"{path}: it has {len(entries)} tensors, and 1 to {MOST_TENSORS} are read")
    return entries


def _check_places(entries: dict[str, TensorPlace], room: int, path: Path) -> None:
    """Every tensor has its own bytes, as many as its shape says, and there are no others."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda each: each[1].data_offsets):
        begin, end = entry.data_offsets
        if entry.dtype not in TYPES:
            raise ModelError(f"{path}: {name[:100]!r} is of type {entry.dtype[:20]!r}; read are {', '.join(TYPES)}")
        wanted = prod(entry.shape) * TYPES[entry.dtype].itemsize
        if end - begin != wanted:
            raise ModelError(
                f"{path}: {name[:100]!r} of shape {list(entry.shape)} needs {wanted:,} bytes, and its place is from "
                f"{begin:,} to {end:,}: the file is damaged"
            )
        if begin != at:
            raise ModelError(f"{path}: {name[:100]!r} begins at byte {begin:,} instead of {at:,}: the file is damaged")
        at = end
    if at != room:
        raise ModelError(
            f"{path}: its tensors have {at:,} bytes, and {room:,} are there: the file is cut off or damaged"
        )


def _tensor(file: BinaryIO, begin: int, name: str, entry: TensorPlace, path: Path) -> Tensor:
    file.seek(begin + entry.data_offsets[0])
    size = entry.data_offsets[1] - entry.data_offsets[0]
    data = bytearray(file.read(size))
    if len(data) != size:
        raise ModelError(f"{path}: the file ends within {name[:100]!r}")
    if not size:
        return torch.zeros(entry.shape, dtype=TYPES[entry.dtype])
    return torch.frombuffer(data, dtype=TYPES[entry.dtype]).reshape(entry.shape)
