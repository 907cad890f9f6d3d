"""Blobs in memory, for simulation and tests; nodes of a process share their content and hashes."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Self, cast
from weakref import WeakValueDictionary

from sojourn.store.blobs import HASH, LEAF, digest_of, digest_of_hashes, leaf_hashes, missing


class MemoryPartial:
    """A partial blob in memory; a blob that is complete at another node of the process is not copied."""

    def __init__(self, digest: bytes, size: int) -> None:
        self.size = size
        self.hashes = bytearray()
        self.leaves: dict[int, bytes] = {}
        self._digest = digest
        self._whole: _Content | None = None

    def add_hashes(self, first: int, hashes: bytes) -> None:
        """Append the next hashes of the list."""
        if first * HASH == len(self.hashes):
            self.hashes += hashes

    def forget_hashes(self) -> None:
        """Discard a wrong list of hashes."""
        self.hashes.clear()

    def known(self, leaf: int) -> bytes | None:
        """Return the content of a leaf if the process has already verified the blob."""
        if self._whole is None:
            found = _CONTENTS.get(self._digest)
            if found is None or not found.proven(self._digest):
                return None
            self._whole = found
        return bytes(self._whole.data[leaf * LEAF : (leaf + 1) * LEAF])

    def write(self, leaf: int, data: bytes | memoryview) -> None:
        """Store a verified leaf."""
        self.leaves[leaf] = b"" if self._whole else bytes(data)

    def content(self) -> _Content:
        """Return the blob, once all leaves are stored."""
        return self._whole or _shared(self._digest, b"".join(self.leaves[leaf] for leaf in sorted(self.leaves)))

    def held(self) -> set[int]:
        """Return the stored leaves."""
        return set(self.leaves)


class _Content:
    """The bytes of a blob, shared by all nodes of the process."""

    __slots__ = ("__weakref__", "_hashes", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._hashes: bytes | None = None

    def hashes(self) -> bytes:
        """Return the hashes of all leaves, computed once."""
        if self._hashes is None:
            self._hashes = leaf_hashes(self.data)
        return self._hashes

    def proven(self, digest: bytes) -> bool:
        """Return whether these bytes were hashed and match the digest."""
        return self._hashes is not None and digest_of_hashes(len(self.data), self._hashes) == digest


_CONTENTS: WeakValueDictionary[bytes, _Content] = WeakValueDictionary()
"""All blobs in memory by digest, so that a model of the whole fleet is stored once."""


HibernatedBlobs = tuple[tuple[bytes, _Content | None], ...]
"""The blobs of a hibernated store by digest; None for blobs that are restored only if another node still has them."""


def _shared(digest: bytes, data: bytes | memoryview) -> _Content:
    held = _CONTENTS.get(digest)
    if held is None or not _same(held.data, data):  # a caller may pass a wrong digest: then its bytes are not shared
        kept = isinstance(data, memoryview) and data.readonly
        held = _CONTENTS[digest] = _Content(cast("bytes", data) if kept else bytes(data))
    return held


def _same(held: bytes | memoryview, data: bytes | memoryview) -> bool:
    # Comparing memoryviews is slower than copying them first.
    return held is data or (len(held) == len(data) and bytes(held) == bytes(data))


class MemoryBlobs:
    """An in-memory `FolderBlobs` for simulation and tests."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, _Content] = {}
        self._partials: dict[bytes, MemoryPartial] = {}

    def has(self, digest: bytes) -> bool:
        """Return whether the complete blob is stored."""
        return digest in self._blobs

    def read(self, digest: bytes, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a blob, or some of them; a blob stored as a read-only view is returned as that view."""
        data = self._held(digest).data
        return data if length is None and not start else bytes(data[start : None if length is None else start + length])

    def size(self, digest: bytes) -> int:
        """Return the size of a blob in bytes."""
        return len(self._held(digest).data)

    def hashes(self, digest: bytes, first: int, stop: int) -> bytes:
        """Return the hashes of some of its leaves."""
        return self._held(digest).hashes()[first * HASH : stop * HASH]

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Store these bytes: a read-only view without a copy (its memory must not change), other bytes as a copy."""
        key = digest or digest_of(data)
        self._blobs[key] = _shared(key, data)
        return key

    def hibernate(self, live: AbstractSet[bytes]) -> HibernatedBlobs:
        """Return what `wake` needs; blobs that are not live are restored only if another node still has them."""
        return tuple((digest, held if digest in live else None) for digest, held in self._blobs.items())

    @classmethod
    def wake(cls, rest: HibernatedBlobs) -> Self:
        """Restore a hibernated store."""
        store = cls()
        for digest, kept in rest:
            held = kept or _CONTENTS.get(digest)
            if held is not None:
                store._blobs[digest] = held
        return store

    def partial(self, digest: bytes, size: int) -> MemoryPartial:
        """Start or resume receiving a blob."""
        return self._partials.setdefault(digest, MemoryPartial(digest, size))

    def complete(self, digest: bytes) -> None:
        """Convert a complete partial to a blob."""
        self._blobs[digest] = self._partials.pop(digest).content()

    def sync(self, digest: bytes) -> None:
        """Do nothing: memory does not survive a power failure."""

    def sweep(self, live: AbstractSet[bytes]) -> int:
        """Delete the blobs that are not live; return their number."""
        dead = (self._blobs.keys() | self._partials.keys()) - live
        for digest in dead:
            self._blobs.pop(digest, None)
            self._partials.pop(digest, None)
        return len(dead)

    def drop_damaged(self, digests: Iterable[bytes]) -> list[bytes]:  # noqa: ARG002  # memory is never damaged
        """Return no digests: memory is never damaged."""
        return []

    def _held(self, digest: bytes) -> _Content:
        try:
            return self._blobs[digest]
        except KeyError:
            raise missing(digest, "memory") from None
