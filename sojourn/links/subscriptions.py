"""Which subscribers a topic matches (MQTT filters with `+`), looked up by the filters' shape instead of trying each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Who = TypeVar("Who")
Shape = tuple[int, tuple[int, ...]]
"""How many levels a filter has, and which of them it names; it leaves the others open with `+`."""


class Subscriptions(Generic[Who]):
    """Filters by their shape, of which there are few, and then by the levels that they name.

    Nearly all leave just their last level open: those of inboxes. They are found by all that comes before it.
    """

    def __init__(self) -> None:
        self._inboxes: dict[str, dict[Who, int]] = {}
        self._shapes: dict[Shape, dict[tuple[str, ...], dict[Who, int]]] = {}
        self._held: dict[Who, dict[str, None]] = {}
        self._count = 0

    def add(self, who: Who, filters: Iterable[str]) -> None:
        """Somebody wants what fits one of these filters."""
        self._count += 1
        held = self._held.setdefault(who, {})
        for one in filters:
            before = _inbox_prefix(one)
            if before is not None:
                self._inboxes.setdefault(before, {})[who] = self._count
            else:
                shape, names = _shape(one)
                self._shapes.setdefault(shape, {}).setdefault(names, {})[who] = self._count
            held[one] = None

    def remove(self, who: Who) -> bool:
        """Somebody wants nothing any more; returns whether they were here."""
        held = self._held.pop(who, None)
        for one in held or ():
            before = _inbox_prefix(one)
            if before is not None:
                _leave(self._inboxes, before, who)
            else:
                shape, names = _shape(one)
                _leave(self._shapes[shape], names, who)
        return held is not None

    def wanting(self, topic: str) -> list[Who]:
        """Those who want this topic, each once, in the order in which they came."""
        found = self._inboxes.get(topic.rpartition("/")[0], {})
        length = topic.count("/") + 1
        for (count, named), those in self._shapes.items():
            if count == length:
                levels = topic.split("/")
                found = found | those.get(tuple([levels[at] for at in named]), {})
        return sorted(found, key=found.__getitem__) if len(found) > 1 else list(found)


Key = TypeVar("Key")


def _leave(those: dict[Key, dict[Who, int]], key: Key, who: Who) -> None:
    del those[key][who]
    if not those[key]:
        del those[key]


def _inbox_prefix(one: str) -> str | None:
    """What a filter names, if it leaves the last level open and no other."""
    before, _, last = one.rpartition("/")
    return before if last == "+" and before and "+" not in before.split("/") else None


def _shape(one: str) -> tuple[Shape, tuple[str, ...]]:
    levels = one.split("/")
    named = tuple(at for at, level in enumerate(levels) if level != "+")
    return (len(levels), named), tuple(levels[at] for at in named)
