"""Content-addressed blobs: hash leaves of 28 KiB, a digest over their hashes, and storage in folders.

digest = SHA-256("sojourn-blob-1" + size as 8 bytes, little-endian + the SHA-256 of every leaf, in order)
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

from sojourn.errors import DiskFull, InvalidBlob, MissingBlob, StoreError
from sojourn.parts import Encoding
from sojourn.protocol.wire import Ref
from sojourn.store.files import TEMP_SUFFIX, move_into_place, private_file, sync_path, write_atomically

LEAF = 28 << 10
"""Two leaves and their envelope fit into 60,000 bytes, which every broker accepts."""
HASH = 32
_LEAVES_PER_READ = 32
_PREFIX = b"sojourn-blob-1"


def leaf_count(size: int) -> int:
    """Return the number of leaves of a blob of this size; 0 for an empty blob."""
    return -(-size // LEAF)


def leaf_hashes(data: bytes | memoryview) -> bytes:
    """Return the concatenated hashes of all leaves."""
    if 0 < len(data) <= LEAF:
        return hashlib.sha256(data).digest()
    view = memoryview(data)
    return b"".join(hashlib.sha256(view[at : at + LEAF]).digest() for at in range(0, len(view), LEAF))


def digest_of_hashes(size: int, hashes: bytes) -> bytes:
    """Return the digest of a blob with these leaf hashes."""
    return hashlib.sha256(_PREFIX + size.to_bytes(8, "little") + hashes).digest()


def digest_of(data: bytes | memoryview) -> bytes:
    """Return the digest of a blob."""
    return digest_of_hashes(len(data), leaf_hashes(data))


def ref_of(data: bytes | memoryview, encoding: Encoding | Literal["raw"] = "raw", *, delta: bool = False) -> Ref:
    """Return a reference to these bytes."""
    return Ref(digest_of(data), len(data), encoding, delta)


class Partial(Protocol):
    """A blob that is being received; it survives a restart if its folder does."""

    size: int
    hashes: bytearray

    def add_hashes(self, first: int, hashes: bytes) -> None:
        """Append the next hashes of the list."""

    def forget_hashes(self) -> None:
        """Discard a wrong list of hashes."""

    def known(self, leaf: int) -> bytes | None:
        """Return the content of a leaf that this process has already verified: comparing is cheaper than hashing."""

    def write(self, leaf: int, data: bytes | memoryview) -> None:
        """Store a verified leaf."""

    def held(self) -> set[int]:
        """Return the verified leaves."""


class BlobStore(Protocol):
    """A node's storage of blobs."""

    def has(self, digest: bytes) -> bool:
        """Return whether the complete blob is stored."""

    def read(self, digest: bytes, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a blob, or some of them; raise MissingBlob, which is also a KeyError."""

    def size(self, digest: bytes) -> int:
        """Return the size of a blob; raise KeyError if it is missing."""

    def hashes(self, digest: bytes, first: int, stop: int) -> bytes:
        """Return the hashes of some of a blob's leaves; raise KeyError if it is missing."""

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Store these bytes and return their digest."""

    def partial(self, digest: bytes, size: int) -> Partial:
        """Start or resume receiving a blob."""

    def complete(self, digest: bytes) -> None:
        """Convert a complete partial to a blob."""

    def sync(self, digest: bytes) -> None:
        """Flush a blob to disk, so that it survives a power failure."""

    def sweep(self, live: AbstractSet[bytes]) -> int:
        """Delete every blob and partial that is not live; return their number."""

    def drop_damaged(self, digests: Iterable[bytes]) -> list[bytes]:
        """Delete those of these blobs whose bytes do not match their digest; return their digests."""


def missing(digest: bytes, where: str) -> MissingBlob:
    """Return the error for a missing blob, with its location."""
    return MissingBlob(f"the blob {digest.hex()[:12]} is missing from {where}: it was deleted or lost")


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Raise DiskFull if the disk is full and StoreError for other disk errors; messages begin with `doing`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{doing}: the disk is full; free some space to continue") from error
        raise StoreError(f"{doing}: {error}") from error


class FolderPartial:
    """A partial blob in two files: its bytes, and the list of its leaf hashes."""

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
        """Append the next hashes of the list."""
        if first * HASH != len(self.hashes):
            return
        with disk_errors(f"writing {self._hash_path}"):
            self.hashes += hashes
            private_file(self._hash_path)
            self._hash_path.write_bytes(self.hashes)

    def forget_hashes(self) -> None:
        """Discard a wrong list of hashes."""
        self.hashes.clear()
        self._hash_path.unlink(missing_ok=True)

    def known(self, leaf: int) -> None:
        """Return None: leaves in a file are always hashed."""

    def write(self, leaf: int, data: bytes | memoryview) -> None:
        """Store a verified leaf."""
        with disk_errors(f"writing {self._path}"):
            written = 0
            while written < len(data):  # a nearly full disk may write only a part before it fails
                written += os.pwrite(self._open().fileno(), memoryview(data)[written:], leaf * LEAF + written)

    def held(self) -> set[int]:
        """Return the leaves whose hashes match; a torn write does not match."""
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
        """Close the file; return its path."""
        if self._file is not None:
            self._file.close()
            self._file = None
        elif self.size == 0:
            private_file(self._path)
        return self._path


class FolderBlobs:
    """Blobs as files named by digest, written to a temporary name and renamed, so that they are always complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partials: dict[bytes, FolderPartial] = {}
        with disk_errors(f"creating {folder}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def tidy(self) -> None:
        """Delete incomplete files of a killed process; the caller must be the only writer."""
        for path in self._folder.glob(f"*{TEMP_SUFFIX}"):
            path.unlink(missing_ok=True)

    def path(self, digest: bytes) -> Path:
        """Return the path of a blob, whether it exists or not."""
        return self._folder / digest.hex()

    def has(self, digest: bytes) -> bool:
        """Return whether the complete blob is stored."""
        return self.path(digest).exists()

    def read(self, digest: bytes, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a blob, or some of them."""
        try:
            with self.path(digest).open("rb", buffering=0) as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except FileNotFoundError:
            raise missing(digest, f"{self._folder}") from None

    def size(self, digest: bytes) -> int:
        """Return the size of a blob in bytes."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise missing(digest, f"{self._folder}") from None

    def hashes(self, digest: bytes, first: int, stop: int) -> bytes:
        """Return the hashes of some of its leaves, read in small steps: they may cover tens of megabytes."""
        starts = range(first, stop, _LEAVES_PER_READ)
        parts = (self.read(digest, at * LEAF, min(_LEAVES_PER_READ, stop - at) * LEAF) for at in starts)
        return b"".join(leaf_hashes(part) for part in parts)

    def put(self, data: bytes | memoryview, digest: bytes | None = None) -> bytes:
        """Store these bytes."""
        key = digest or digest_of(data)
        target = self.path(key)
        if not target.exists():
            with disk_errors(f"writing {target}"):
                write_atomically(target, data, mode=0o600, sync=False)
        return key

    def partial(self, digest: bytes, size: int) -> FolderPartial:
        """Start or resume receiving a blob."""
        if digest not in self._partials:
            self._partials[digest] = FolderPartial(self.path(digest).with_suffix(".part"), size)
        return self._partials[digest]

    def complete(self, digest: bytes) -> None:
        """Convert a complete partial to a blob."""
        with disk_errors(f"keeping {self.path(digest)}"):
            path = self._partials.pop(digest).close()
            move_into_place(path, self.path(digest), sync=False)
            path.with_suffix(".hashes").unlink(missing_ok=True)

    def sync(self, digest: bytes) -> None:
        """Flush a blob and its name to disk, so that both survive a power failure."""
        with disk_errors(f"syncing {self.path(digest)}"):
            for path in (self.path(digest), self._folder):
                sync_path(path)

    def sweep(self, live: AbstractSet[bytes]) -> int:
        """Delete the blobs that are not live; return their number."""
        names = {digest.hex() for digest in live}
        dead = [
            path
            for path in self._folder.iterdir()
            if path.name.partition(".")[0] not in names and path.suffix != TEMP_SUFFIX  # still being written
        ]
        for path in dead:
            path.unlink(missing_ok=True)
        for digest in self._partials.keys() - live:
            self._partials.pop(digest).close()
        return len(dead)

    def drop_damaged(self, digests: Iterable[bytes]) -> list[bytes]:
        """Delete those of these blobs whose bytes do not match their digest; return their digests."""
        damaged = [digest for digest in digests if self.has(digest) and digest_of(self._content(digest)) != digest]
        for digest in damaged:
            self.path(digest).unlink(missing_ok=True)
        return damaged

    def _content(self, digest: bytes) -> bytes:
        """Return all bytes of a blob, or no bytes if the disk fails to read them."""
        try:
            return self.read(digest)
        except OSError:
            return b""


def verified(data: bytes, ref: Ref) -> bytes:
    """Return the bytes if they match the reference; otherwise raise InvalidBlob."""
    if len(data) != ref.size or digest_of(data) != ref.digest:
        raise InvalidBlob(f"{len(data)} bytes do not match the digest {ref.digest.hex()[:12]}")
    return data
