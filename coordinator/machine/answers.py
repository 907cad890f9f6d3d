"""Answers to operators: refusals, and lists cut to what fits in a message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from sojourn.node.machine import Effect, Send
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.topics import Address

_T = TypeVar("_T")
MAX_REASON_LENGTH = 20_000
"""Maximum characters of a reason in a message."""
MAX_LIST_SIZE = 12_000
"""Maximum bytes for one of three lists in a message, so that it fits in any broker's packet."""
MAX_SINGLE_LIST_SIZE = 30_000
"""Maximum bytes for the only list in a message."""


def refuse(operator: Address, ticket: str, reason: str) -> list[Effect]:
    """Refuse an operator's request; a reason that is too long for a message is cut."""
    return [Send(operator, Refused(ticket, reason[:MAX_REASON_LENGTH]))]


def drop_oldest(table: dict[Any, Any], most: int) -> None:
    """Drop the first entries of a table until at most this many are left."""
    while len(table) > most:
        del table[next(iter(table))]


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
