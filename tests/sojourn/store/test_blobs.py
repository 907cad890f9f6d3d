"""Blobs: exact digests, equivalent stores in memory and on disk, and disk errors."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest

from sojourn.errors import DiskFull, InvalidBlob, StoreError
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import (
    HASH,
    LEAF,
    FolderBlobs,
    digest_of,
    digest_of_hashes,
    leaf_count,
    leaf_hashes,
    ref_of,
    verified,
)
from sojourn.store.memory_blobs import _CONTENTS, MemoryBlobs


@pytest.fixture(params=["memory", "folder"])
def blobs(request, tmp_path):
    return MemoryBlobs() if request.param == "memory" else FolderBlobs(tmp_path / "blobs")


@pytest.mark.parametrize("data", [b"", b"sojourn", bytes(LEAF), bytes(range(256)) * 1000])
def test_digest_matches_the_protocol(data) -> None:
    leaves = [data[at : at + LEAF] for at in range(0, len(data), LEAF)]
    by_hand = hashlib.sha256(
        b"sojourn-blob-1" + len(data).to_bytes(8, "little") + b"".join(hashlib.sha256(leaf).digest() for leaf in leaves)
    ).digest()
    assert digest_of(data) == by_hand


def test_known_digests_are_reproduced() -> None:
    assert digest_of(b"").hex() == hashlib.sha256(b"sojourn-blob-1" + bytes(8)).hexdigest()
    one = hashlib.sha256(b"a").digest()
    assert digest_of(b"a") == hashlib.sha256(b"sojourn-blob-1\x01" + bytes(7) + one).digest()
    data = bytes(LEAF) + b"x"
    assert leaf_hashes(data) == hashlib.sha256(bytes(LEAF)).digest() + hashlib.sha256(b"x").digest()
    assert digest_of(data) == digest_of_hashes(LEAF + 1, leaf_hashes(data))


@pytest.mark.parametrize(("size", "leaves"), [(0, 0), (1, 1), (LEAF, 1), (LEAF + 1, 2), (10 * LEAF, 10)])
def test_leaves_are_counted(size, leaves) -> None:
    assert leaf_count(size) == leaves
    assert len(leaf_hashes(bytes(size))) == 32 * leaves


def test_stored_blob_can_be_read_in_ranges(blobs) -> None:
    data = os.urandom(3 * LEAF + 17)
    digest = blobs.put(data)
    assert digest == digest_of(data)
    assert blobs.has(digest)
    assert blobs.size(digest) == len(data)
    assert blobs.read(digest) == data
    assert blobs.read(digest, LEAF, LEAF) == data[LEAF : 2 * LEAF]
    assert blobs.read(digest, 3 * LEAF, LEAF) == data[3 * LEAF :]
    assert blobs.put(data) == digest


def test_missing_blob_raises_key_error(blobs) -> None:
    assert not blobs.has(bytes(32))
    for ask in (blobs.read, blobs.size):
        with pytest.raises(KeyError):
            ask(bytes(32))


def test_sweep_keeps_live_blobs_and_partials(blobs) -> None:
    kept, dead = blobs.put(b"kept"), blobs.put(b"dead")
    half = digest_of(bytes(2 * LEAF))
    blobs.partial(half, 2 * LEAF).add_hashes(0, leaf_hashes(bytes(2 * LEAF)))
    blobs.partial(half, 2 * LEAF).write(0, bytes(LEAF))
    blobs.sweep({kept, half})
    assert blobs.has(kept)
    assert not blobs.has(dead)
    assert blobs.partial(half, 2 * LEAF).held() == {0}
    blobs.sweep({kept})
    assert blobs.partial(half, 2 * LEAF).held() == set()


def test_complete_partial_becomes_a_blob(blobs) -> None:
    data = os.urandom(2 * LEAF + 5)
    digest = digest_of(data)
    partial = blobs.partial(digest, len(data))
    partial.add_hashes(0, leaf_hashes(data))
    for leaf in (2, 0, 1):
        assert not blobs.has(digest)
        partial.write(leaf, data[leaf * LEAF : (leaf + 1) * LEAF])
    assert partial.held() == {0, 1, 2}
    blobs.complete(digest)
    blobs.sync(digest)
    assert blobs.read(digest) == data


def test_empty_blob_can_be_completed(blobs) -> None:
    blobs.partial(digest_of(b""), 0)
    blobs.complete(digest_of(b""))
    assert blobs.read(digest_of(b"")) == b""


def test_partial_survives_restart_without_torn_writes(tmp_path) -> None:
    data = os.urandom(4 * LEAF)
    digest = digest_of(data)
    partial = FolderBlobs(tmp_path).partial(digest, len(data))
    partial.add_hashes(0, leaf_hashes(data))
    partial.write(0, data[:LEAF])
    partial.write(2, data[2 * LEAF : 3 * LEAF])
    partial.write(1, bytes(100))
    again = FolderBlobs(tmp_path).partial(digest, len(data))
    assert bytes(again.hashes) == leaf_hashes(data)
    assert again.held() == {0, 2}
    for leaf in (1, 3):
        again.write(leaf, data[leaf * LEAF : (leaf + 1) * LEAF])
    assert again.held() == {0, 1, 2, 3}


def test_hashes_are_accepted_in_order_only(blobs) -> None:
    hashes = leaf_hashes(bytes(4 * LEAF))
    partial = blobs.partial(digest_of(bytes(4 * LEAF)), 4 * LEAF)
    partial.add_hashes(2, hashes[64:])
    assert not partial.hashes
    partial.add_hashes(0, hashes[:64])
    partial.add_hashes(0, hashes[:64])
    partial.add_hashes(2, hashes[64:])
    assert bytes(partial.hashes) == hashes


def test_torn_hash_list_is_truncated(tmp_path) -> None:
    digest = digest_of(bytes(2 * LEAF))
    FolderBlobs(tmp_path).partial(digest, 2 * LEAF).add_hashes(0, leaf_hashes(bytes(2 * LEAF)))
    path = next(tmp_path.glob("*.hashes"))
    path.write_bytes(path.read_bytes()[:40])
    assert len(FolderBlobs(tmp_path).partial(digest, 2 * LEAF).hashes) == 32


def test_temporary_files_of_killed_process_are_removed(tmp_path) -> None:
    blobs = FolderBlobs(tmp_path)
    (tmp_path / f"{'a' * 64}.77.new").write_bytes(b"half")
    blobs.sweep(set())
    assert len(list(tmp_path.iterdir())) == 1
    blobs.tidy()
    assert not list(tmp_path.iterdir())


def test_blob_is_verified_against_its_reference() -> None:
    ref = ref_of(b"content")
    assert verified(b"content", ref) == b"content"
    for wrong in (b"Content", b"conten", b"content!"):
        with pytest.raises(InvalidBlob):
            verified(wrong, ref)
    with pytest.raises(InvalidBlob):
        verified(b"content", Ref(ref.digest, 8))


def full(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_reported_when_storing(tmp_path, monkeypatch) -> None:
    blobs = FolderBlobs(tmp_path)
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(DiskFull, match="the disk is full"):
        blobs.put(b"data")
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
    blobs.put(b"data")


def test_full_disk_is_reported_when_receiving(tmp_path, monkeypatch) -> None:
    partial = FolderBlobs(tmp_path).partial(digest_of(bytes(2 * LEAF)), 2 * LEAF)
    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DiskFull):
        partial.write(0, bytes(LEAF))


def test_partial_disk_writes_are_continued(tmp_path, monkeypatch) -> None:
    data = os.urandom(LEAF + 3)
    digest = digest_of(data)
    blobs = FolderBlobs(tmp_path)
    partial = blobs.partial(digest, len(data))
    partial.add_hashes(0, leaf_hashes(data))
    pwrite, calls = os.pwrite, []

    def a_little(file, piece, at):
        calls.append(at)
        return pwrite(file, bytes(piece)[:10_000], at)

    monkeypatch.setattr("os.pwrite", a_little)
    partial.write(0, data[:LEAF])
    partial.write(1, data[LEAF:])
    assert calls == [0, 10_000, 20_000, LEAF]
    assert partial.held() == {0, 1}
    blobs.complete(digest)
    assert blobs.read(digest) == data


def test_other_disk_errors_are_not_a_full_disk(tmp_path, monkeypatch) -> None:
    def broken(*_args, **_kwargs):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("pathlib.Path.replace", broken)
    with pytest.raises(StoreError) as caught:
        FolderBlobs(tmp_path).put(b"data")
    assert not isinstance(caught.value, DiskFull)


def test_identical_blobs_share_memory() -> None:
    data = bytes(range(200)) * 10
    first, second, third = MemoryBlobs(), MemoryBlobs(), MemoryBlobs()
    digest = first.put(data)
    second.put(memoryview(bytearray(data)), digest)
    partial = third.partial(digest, len(data))
    partial.write(0, data)
    third.complete(digest)
    assert first.read(digest) is second.read(digest) is third.read(digest)
    first.sweep(set())
    assert second.read(digest) == data


def test_unreferenced_content_is_released() -> None:
    blobs = MemoryBlobs()
    digest = blobs.put(b"held by no other node")
    assert digest in _CONTENTS
    blobs.sweep(set())
    assert digest not in _CONTENTS


def test_different_bytes_under_one_digest_stay_separate() -> None:
    mine, yours = MemoryBlobs(), MemoryBlobs()
    mine.put(b"mine", bytes(32))
    yours.put(b"yours", bytes(32))
    assert (mine.read(bytes(32)), yours.read(bytes(32))) == (b"mine", b"yours")


def test_verified_blob_is_compared_instead_of_hashed_again() -> None:
    data = bytes(range(256)) * 400
    sender, receiver = MemoryBlobs(), MemoryBlobs()
    digest = sender.put(data)
    assert receiver.partial(digest, len(data)).known(0) is None  # not hashed yet
    leaves = leaf_count(len(data))
    assert sender.hashes(digest, 0, leaves) == leaf_hashes(data)
    assert sender.hashes(digest, 1, 3) == leaf_hashes(data)[HASH : 3 * HASH]
    partial = receiver.partial(digest, len(data))
    for leaf in range(leaves):
        known = partial.known(leaf)
        assert known == data[leaf * LEAF : (leaf + 1) * LEAF]
        partial.write(leaf, known)
    receiver.complete(digest)
    assert receiver.read(digest) == data


def test_bytes_under_a_wrong_digest_are_not_trusted() -> None:
    liar, receiver, data = MemoryBlobs(), MemoryBlobs(), b"another" * 9000
    digest = digest_of(b"one" * 21000)
    liar.put(data, digest)
    liar.hashes(digest, 0, leaf_count(len(data)))
    assert receiver.partial(digest, len(data)).known(0) is None
