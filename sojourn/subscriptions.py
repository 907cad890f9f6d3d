"""Who has subscribed to what: a topic finds its own among very many, without asking all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Who = TypeVar("Who")
Shape = tuple[int, tuple[int, ...]]
"""How many levels a filter has, and which of them it names; it leaves the others open with `+`."""


class Subscriptions(Generic[Who]):
    """Filters by their shape, of which there are few, and then by the levels that they name."""

    def __init__(self) -> None:
        self._shapes: dict[Shape, dict[tuple[str, ...], dict[Who, int]]] = {}
        self._held: dict[Who, list[tuple[Shape, tuple[str, ...]]]] = {}
        self._count = 0

    def add(self, who: Who, filters: Iterable[str]) -> None:
        """Somebody wants what fits one of these filters."""
        self._count += 1
        held = self._held.setdefault(who, [])
        for one in filters:
            levels = one.split("/")
            named = tuple(at for at, level in enumerate(levels) if level != "+")
            shape, names = (len(levels), named), tuple(levels[at] for at in named)
            self._shapes.setdefault(shape, {}).setdefault(names, {})[who] = self._count
            held.append((shape, names))

    def remove(self, who: Who) -> bool:
        """Somebody wants nothing any more; returns whether they were here."""
        held = self._held.pop(who, None)
        for shape, names in dict.fromkeys(held or ()):
            del self._shapes[shape][names][who]
            if not self._shapes[shape][names]:
                del self._shapes[shape][names]
        return held is not None

    def wanting(self, topic: str) -> list[Who]:
        """Those who want this topic, each once, in the order in which they came."""
        levels = topic.split("/")
        found: dict[Who, int] = {}
        for (count, named), those in self._shapes.items():
            if count == len(levels):
                found |= those.get(tuple([levels[at] for at in named]), {})
        return sorted(found, key=found.__getitem__) if len(found) > 1 else list(found)
