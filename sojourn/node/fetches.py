"""Which keys (visits, tours, ...) wait for which blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Who = TypeVar("Who")


class Fetches(Generic[Who]):
    """What is being fetched, and for whom: by blob, so that an arrival finds those who wait for it."""

    def __init__(self) -> None:
        self._lacking: dict[Who, set[bytes]] = {}
        self._waiting: dict[bytes, dict[Who, None]] = {}

    def wait(self, who: Who, digests: Iterable[bytes]) -> None:
        """Somebody needs these blobs, and no others any more."""
        self.forget(who)
        self._lacking[who] = set(digests)
        for digest in self._lacking[who]:
            self._waiting.setdefault(digest, {})[who] = None

    def arrived(self, digest: bytes) -> list[Who]:
        """A blob is here; returns those who have all they need now, in the order in which they asked."""
        complete = []
        for who in self._waiting.pop(digest, {}):
            self._lacking[who].discard(digest)
            if not self._lacking[who]:
                del self._lacking[who]
                complete.append(who)
        return complete

    def waiting(self, digest: bytes) -> list[Who]:
        """The keys that wait for this blob."""
        return list(self._waiting.get(digest, ()))

    def forget(self, who: Who) -> None:
        """Drop a key and all that it waits for."""
        for digest in self._lacking.pop(who, ()):
            del self._waiting[digest][who]
            if not self._waiting[digest]:
                del self._waiting[digest]
