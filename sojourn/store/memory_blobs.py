"""Blobs in memory, for simulation and tests: what many nodes of a process hold is there once, and hashed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast
from weakref import WeakValueDictionary

from sojourn.store.blobs import HASH, LEAF, digest_of, digest_of_hashes, leaf_hashes, missing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet


class MemoryPartial:
    """A partial blob in memory. Of a blob that is whole elsewhere in this process no second copy is made."""

    def __init__(self, digest: bytes, size: int) -> None:
        self.size = size
        self.hashes = bytearray()
        self.leaves: dict[int, bytes] = {}
        self._digest = digest
        self._whole: _Content | None = None

    def add_hashes(self, first: int, hashes: bytes) -> None:
        """Take the next hashes of the list."""
        if first * HASH == len(self.hashes):
            self.hashes += hashes

    def forget_hashes(self) -> None:
        """The list is wrong: begin it anew."""
        self.hashes.clear()

    def known(self, leaf: int) -> bytes | None:
        """What this leaf must be, if the blob was proven to be what its digest says somewhere in this process."""
        if self._whole is None:
            found = _CONTENTS.get(self._digest)
            if found is None or not found.proven(self._digest):
                return None
            self._whole = found
        return bytes(self._whole.data[leaf * LEAF : (leaf + 1) * LEAF])

    def write(self, leaf: int, data: bytes | memoryview) -> None:
        """Keep one verified leaf."""
        self.leaves[leaf] = b"" if self._whole else bytes(data)

    def content(self) -> _Content:
        """The blob, when all leaves are here."""
        return self._whole or _shared(self._digest, b"".join(self.leaves[leaf] for leaf in sorted(self.leaves)))

    def held(self) -> set[int]:
        """The leaves that are here."""
        return set(self.leaves)


class _Content:
    """The bytes of a blob, which all that hold it in this process share."""

    __slots__ = ("__weakref__", "_hashes", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._hashes: bytes | None = None

    def hashes(self) -> bytes:
        """The hashes of all leaves; they are reckoned once."""
        if self._hashes is None:
            self._hashes = leaf_hashes(self.data)
        return self._hashes

    def proven(self, digest: bytes) -> bool:
        """Whether these bytes were hashed, and are what the digest says."""
        return self._hashes is not None and digest_of_hashes(len(self.data), self._hashes) == digest


_CONTENTS: WeakValueDictionary[bytes, _Content] = WeakValueDictionary()
"""What is held in memory, by its digest: a model that a whole fleet has is there once."""


BlobsAtRest = tuple[tuple[bytes, _Content | None], ...]
"""The blobs of a store that was put away, by digest; None for what is only had again if it is still around."""


def _shared(digest: bytes, data: bytes | memoryview) -> _Content:
    held = _CONTENTS.get(digest)
    if held is None or not _same(held.data, data):  # a caller may name bytes as it likes: then they are its own
        kept = isinstance(data, memoryview) and data.readonly
        held = _CONTENTS[digest] = _Content(cast("bytes", data) if kept else bytes(data))
    return held


def _same(held: bytes | memoryview, data: bytes | memoryview) -> bool:
    # Views are compared number by number, which takes longer than to copy them first.
    return held is data or (len(held) == len(data) and bytes(held) == bytes(data))


class MemoryBlobs:
    """The twin of `FolderBlobs` for simulation and tests."""

    def __init__(self) -> None:
        self._blobs: dict[bytes, _Content] = {}
        self._partials: dict[bytes, MemoryPartial] = {}

    def has(self, digest: bytes) -> bool:
        """Whether the whole blob is here."""
        return digest in self._blobs

    def read(self, digest: bytes, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a blob, or some of them; of a blob that was put as a read-only view, all of it is that view."""
        data = self._held(digest).data
        return data if length is None and not start else bytes(data[start : None if length is None else start + length])

    def size(self, digest: bytes) -> int:
        """The size of a blob in bytes."""
        return len(self._held(digest).data)

    def hashes(self, digest: bytes, first: int, stop: int) -> bytes:
        """The hashes of some of its leaves."""
        return self._held(digest).hashes()[first * HASH : stop * HASH]

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Keep these bytes: a read-only view as it is (nobody may write there as long as it is held), others copied."""
        key = digest or digest_of(data)
        self._blobs[key] = _shared(key, data)
        return key

    def put_away(self, live: AbstractSet[bytes]) -> BlobsAtRest:
        """What is needed to have these blobs again; who is not live is had again only if somebody else has it still."""
        return tuple((digest, held if digest in live else None) for digest, held in self._blobs.items())

    @classmethod
    def from_rest(cls, rest: BlobsAtRest) -> Self:
        """The store that was put away."""
        store = cls()
        for digest, kept in rest:
            held = kept or _CONTENTS.get(digest)
            if held is not None:
                store._blobs[digest] = held
        return store

    def partial(self, digest: bytes, size: int) -> MemoryPartial:
        """Begin or go on receiving a blob."""
        return self._partials.setdefault(digest, MemoryPartial(digest, size))

    def complete(self, digest: bytes) -> None:
        """Make a blob of a partial one whose leaves are all here."""
        self._blobs[digest] = self._partials.pop(digest).content()

    def sync(self, digest: bytes) -> None:
        """Do nothing: memory survives no power cut."""

    def sweep(self, live: AbstractSet[bytes]) -> int:
        """Delete the blobs that are not live; returns how many."""
        dead = (self._blobs.keys() | self._partials.keys()) - live
        for digest in dead:
            self._blobs.pop(digest, None)
            self._partials.pop(digest, None)
        return len(dead)

    def drop_damaged(self, digests: Iterable[bytes]) -> list[bytes]:  # noqa: ARG002  # memory is not damaged
        """Find nothing: memory is what it was."""
        return []

    def _held(self, digest: bytes) -> _Content:
        try:
            return self._blobs[digest]
        except KeyError:
            raise missing(digest, "memory") from None
