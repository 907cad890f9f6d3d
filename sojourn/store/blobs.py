"""Content-addressed blobs: hash leaves of 28 KiB, a digest over their hashes, and folders that keep them.

digest = SHA-256("sojourn-blob-1" + size as 8 bytes, little-endian + the SHA-256 of every leaf, in order)
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from sojourn.errors import DiskFull, InvalidBlob, MissingBlob, StoreError
from sojourn.protocol.wire import Ref
from sojourn.store.files import BESIDE, move_into_place, sync_path, write_atomically
from sojourn.store.private import private_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from typing import BinaryIO, Literal

    from sojourn.parts import Encoding

LEAF = 28 << 10
"""Two leaves and their envelope fit into 60,000 bytes, which every broker takes."""
HASH = 32
_AT_ONCE = 32
_PREFIX = b"sojourn-blob-1"


def leaf_count(size: int) -> int:
    """How many leaves a blob of this size has; an empty one has none."""
    return -(-size // LEAF)


def leaf_hashes(data: bytes | memoryview) -> bytes:
    """The hashes of all leaves, one after another."""
    if 0 < len(data) <= LEAF:
        return hashlib.sha256(data).digest()
    view = memoryview(data)
    return b"".join(hashlib.sha256(view[at : at + LEAF]).digest() for at in range(0, len(view), LEAF))


def digest_of_hashes(size: int, hashes: bytes) -> bytes:
    """The digest of a blob with these leaf hashes."""
    return hashlib.sha256(_PREFIX + size.to_bytes(8, "little") + hashes).digest()


def digest_of(data: bytes | memoryview) -> bytes:
    """The digest of a blob."""
    return digest_of_hashes(len(data), leaf_hashes(data))


def ref_of(data: bytes | memoryview, encoding: Encoding | Literal["raw"] = "raw", *, delta: bool = False) -> Ref:
    """A reference to these bytes."""
    return Ref(digest_of(data), len(data), encoding, delta)


class Partial(Protocol):
    """A blob that is being received; survives a restart where its folder does."""

    size: int
    hashes: bytearray

    def add_hashes(self, first: int, hashes: bytes) -> None:
        """Take the next hashes of the list."""

    def forget_hashes(self) -> None:
        """The list is wrong: begin it anew."""

    def known(self, leaf: int) -> bytes | None:
        """What this leaf must be, if this process has proven it already: comparing is cheaper than hashing."""

    def write(self, leaf: int, data: bytes | memoryview) -> None:
        """Keep one verified leaf."""

    def held(self) -> set[int]:
        """The leaves that are already here, verified."""


class BlobStore(Protocol):
    """Where a node keeps its blobs."""

    def has(self, digest: bytes) -> bool:
        """Whether the whole blob is here."""

    def read(self, digest: bytes, start: int = 0, length: int | None = None) -> bytes:
        """Its bytes, or some of them. A missing blob is a MissingBlob, which is a KeyError too."""

    def size(self, digest: bytes) -> int:
        """Its size. A missing blob is a KeyError."""

    def hashes(self, digest: bytes, first: int, stop: int) -> bytes:
        """The hashes of some of its leaves. A missing blob is a KeyError."""

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Keep these bytes; returns their digest."""

    def partial(self, digest: bytes, size: int) -> Partial:
        """Begin or go on receiving a blob."""

    def complete(self, digest: bytes) -> None:
        """All leaves of a partial are here: it becomes a blob."""

    def sync(self, digest: bytes) -> None:
        """Make sure that a blob survives a power cut."""

    def sweep(self, live: AbstractSet[bytes]) -> int:
        """Delete every blob and partial that is not live; returns how many."""

    def drop_damaged(self, digests: Iterable[bytes]) -> list[bytes]:
        """Delete those of these blobs whose bytes are not what their digest says; returns their digests."""


def missing(digest: bytes, where: str) -> MissingBlob:
    """The error that says which blob is gone, and from where."""
    return MissingBlob(f"the blob {digest.hex()[:12]} is missing from {where}: it was deleted, or the disk lost it")


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raise DiskFull when no space is left, StoreError for any other disk error; `doing` begins the message."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{doing}: no space is left on the disk; free some and it goes on") from error
        raise StoreError(f"{doing}: {error}") from error


class FolderPartial:
    """A partial blob in two files: its bytes in place, and the list of its leaf hashes."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self._hash_path = path.with_suffix(".hashes")
        self._path = path
        self._file: BinaryIO | None = None
        self.hashes = bytearray(self._hash_path.read_bytes() if self._hash_path.exists() else b"")
        del self.hashes[len(self.hashes) // HASH * HASH :]

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        return self._file

    def add_hashes(self, first: int, hashes: bytes) -> None:
        """Take the next hashes of the list."""
        if first * HASH != len(self.hashes):
            return
        with disk_errors(f"writing {self._hash_path}"):
            self.hashes += hashes
            private_file(self._hash_path)
            self._hash_path.write_bytes(self.hashes)

    def forget_hashes(self) -> None:
        """The list is wrong: begin it anew."""
        self.hashes.clear()
        self._hash_path.unlink(missing_ok=True)

    def known(self, leaf: int) -> None:
        """Never known here: leaves in a file are hashed."""

    def write(self, leaf: int, data: bytes | memoryview) -> None:
        """Keep one verified leaf."""
        with disk_errors(f"writing {self._path}"):
            written = 0
            while written < len(data):  # a disk that is nearly full takes a part before it says no
                written += os.pwrite(self._open().fileno(), memoryview(data)[written:], leaf * LEAF + written)

    def held(self) -> set[int]:
        """The leaves that are here, told by their hashes: a torn write is simply not held."""
        if not self._path.exists():
            return set()
        data, count = self._path.read_bytes(), len(self.hashes) // HASH
        leaves = (data[leaf * LEAF : min((leaf + 1) * LEAF, self.size)] for leaf in range(count))
        return {
            leaf
            for leaf, piece in enumerate(leaves)
            if hashlib.sha256(piece).digest() == self.hashes[leaf * HASH : (leaf + 1) * HASH]
        }

    def close(self) -> Path:
        """Let go of the file; returns its path."""
        if self._file is not None:
            self._file.close()
            self._file = None
        elif self.size == 0:
            private_file(self._path)
        return self._path


class FolderBlobs:
    """Blobs as files named by their digest, written beside and renamed: a half-written one is never seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partials: dict[bytes, FolderPartial] = {}
        with disk_errors(f"creating {folder}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def tidy(self) -> None:
        """Delete what a killed process left half-written; only for who knows that nobody else writes here."""
        for path in self._folder.glob(f"*{BESIDE}"):
            path.unlink(missing_ok=True)

    def path(self, digest: bytes) -> Path:
        """Where a blob is, or would be."""
        return self._folder / digest.hex()

    def has(self, digest: bytes) -> bool:
        """Whether the whole blob is here."""
        return self.path(digest).exists()

    def read(self, digest: bytes, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of a blob, or some of them."""
        try:
            with self.path(digest).open("rb", buffering=0) as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except FileNotFoundError:
            raise missing(digest, f"{self._folder}") from None

    def size(self, digest: bytes) -> int:
        """The size of a blob in bytes."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise missing(digest, f"{self._folder}") from None

    def hashes(self, digest: bytes, first: int, stop: int) -> bytes:
        """The hashes of some of its leaves, read a few at a time: a list of them covers tens of megabytes."""
        starts = range(first, stop, _AT_ONCE)
        parts = (self.read(digest, at * LEAF, min(_AT_ONCE, stop - at) * LEAF) for at in starts)
        return b"".join(leaf_hashes(part) for part in parts)

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Keep these bytes."""
        key = digest or digest_of(data)
        target = self.path(key)
        if not target.exists():
            with disk_errors(f"writing {target}"):
                write_atomically(target, data, mode=0o600, sync=False)
        return key

    def partial(self, digest: bytes, size: int) -> FolderPartial:
        """Begin or go on receiving a blob."""
        if digest not in self._partials:
            self._partials[digest] = FolderPartial(self.path(digest).with_suffix(".part"), size)
        return self._partials[digest]

    def complete(self, digest: bytes) -> None:
        """Make a blob of a partial one whose leaves are all here."""
        with disk_errors(f"keeping {self.path(digest)}"):
            path = self._partials.pop(digest).close()
            move_into_place(path, self.path(digest), sync=False)
            path.with_suffix(".hashes").unlink(missing_ok=True)

    def sync(self, digest: bytes) -> None:
        """Make sure that a blob, and its name, survive a power cut."""
        with disk_errors(f"syncing {self.path(digest)}"):
            for path in (self.path(digest), self._folder):
                sync_path(path)

    def sweep(self, live: AbstractSet[bytes]) -> int:
        """Delete the blobs that are not live; returns how many."""
        names = {digest.hex() for digest in live}
        dead = [
            path
            for path in self._folder.iterdir()
            if path.name.partition(".")[0] not in names and path.suffix != BESIDE  # that one is being written
        ]
        for path in dead:
            path.unlink(missing_ok=True)
        for digest in self._partials.keys() - live:
            self._partials.pop(digest).close()
        return len(dead)

    def drop_damaged(self, digests: Iterable[bytes]) -> list[bytes]:
        """Delete those of these blobs whose bytes are not what their digest says; returns their digests."""
        damaged = [digest for digest in digests if self.has(digest) and digest_of(self._content(digest)) != digest]
        for digest in damaged:
            self.path(digest).unlink(missing_ok=True)
        return damaged

    def _content(self, digest: bytes) -> bytes:
        """All bytes of a blob; none where the disk does not give them back."""
        try:
            return self.read(digest)
        except OSError:
            return b""


def verified(data: bytes, ref: Ref) -> bytes:
    """The bytes, if they are what the reference says."""
    if len(data) != ref.size or digest_of(data) != ref.digest:
        raise InvalidBlob(f"{len(data)} bytes do not match the digest {ref.digest.hex()[:12]}")
    return data
