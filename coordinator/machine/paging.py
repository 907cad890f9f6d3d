"""Lists that are cut to what fits in a message."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_T = TypeVar("_T")
ROOM = 15_000
"""Bytes for one list of a message: with two of them and the longest detail it still fits in any broker's packet."""


def first_page(items: Iterable[_T]) -> tuple[_T, ...]:
    """The first items that fit in the room there is, at least one."""
    sized = [(len(msgspec.msgpack.encode(item)), item) for item in items]
    ends = accumulate(size for size, _ in sized)
    return tuple(item for (size, item), end in zip(sized, ends, strict=True) if end <= max(ROOM, size))
