"""Cut lists to what fits in a message."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_T = TypeVar("_T")
MAX_LIST_SIZE = 12_000
"""Maximum bytes for one of three lists in a message, so that it fits in any broker's packet."""

MAX_SINGLE_LIST_SIZE = 30_000
"""Maximum bytes for the only list in a message."""


def first_page(items: Iterable[_T], room: int = MAX_LIST_SIZE) -> tuple[_T, ...]:
    """Return the first items that fit in `room` bytes, at least one."""
    sized = [(len(msgspec.msgpack.encode(item)), item) for item in items]
    ends = accumulate(size for size, _ in sized)
    return tuple(item for (size, item), end in zip(sized, ends, strict=True) if end <= max(room, size))


def fitting(items: Iterator[tuple[str, _T]], limit: int, room: int = MAX_LIST_SIZE) -> tuple[tuple[_T, ...], str]:
    """Return the first items that fit, at least one, and the name of the last if more follow."""
    page: list[_T] = []
    used, last = 0, ""
    for name, item in items:
        used += len(msgspec.msgpack.encode(item))
        if page and (used > room or len(page) >= limit):
            return tuple(page), last
        page.append(item)
        last = name
    return tuple(page), ""
