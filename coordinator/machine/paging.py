"""Lists that are cut to what fits in a message."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_T = TypeVar("_T")
ROOM = 12_000
"""Bytes for one list of a message: with three of them and the longest detail it still fits in any broker's packet."""

ALONE = 30_000
"""Bytes for the one list of a message that has no other."""


def first_page(items: Iterable[_T], room: int = ROOM) -> tuple[_T, ...]:
    """The first items that fit in the room there is, at least one."""
    sized = [(len(msgspec.msgpack.encode(item)), item) for item in items]
    ends = accumulate(size for size, _ in sized)
    return tuple(item for (size, item), end in zip(sized, ends, strict=True) if end <= max(room, size))


def fitting(items: Iterator[tuple[str, _T]], most: int, room: int = ROOM) -> tuple[tuple[_T, ...], str]:
    """The first items that fit, at least one, of what may be much longer; and the name of the last, if more follow."""
    page: list[_T] = []
    used, last = 0, ""
    for name, item in items:
        used += len(msgspec.msgpack.encode(item))
        if page and (used > room or len(page) >= most):
            return tuple(page), last
        page.append(item)
        last = name
    return tuple(page), ""
