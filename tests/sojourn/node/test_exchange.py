"""Fetching blobs: resume, windows, wrong data, grants."""

from __future__ import annotations

import os
import random

import pytest

from sojourn.errors import DiskFull
from sojourn.node.exchange import MAX_BLOB_BYTES, WINDOW, Exchange
from sojourn.node.machine import Pulled, PullFailed
from sojourn.protocol.messages import Chunk, Fetch, FetchHashes, Gone, Hashes
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import LEAF, FolderBlobs, digest_of, leaf_hashes, ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.there import there

EDGE, DEVICE, OTHER = Address("edge", "e"), Address("device", "d"), Address("device", "x")
LIMIT = 100_000


class Pair:
    """Two exchanges and the messages between them, delivered step by step."""

    def __init__(self, giver=None, taker=None, limit: int = LIMIT) -> None:
        self.wire: list[tuple[Address, Message]] = []
        self.giver_blobs = giver or MemoryBlobs()
        self.taker_blobs = taker or MemoryBlobs()
        self.giver = Exchange(self.giver_blobs, lambda to, m: self.wire.append((EDGE, m)), lambda _to: limit)
        self.taker = Exchange(self.taker_blobs, lambda to, m: self.wire.append((DEVICE, m)), lambda _to: limit)
        self.outcomes: list[object] = []
        self.sent: list[object] = []
        self.now = 0.0

    def give(self, data: bytes) -> Ref:
        ref = ref_of(data)
        self.giver_blobs.put(data, ref.digest)
        self.giver.grant(DEVICE, [ref.digest])
        return ref

    def pull(self, ref: Ref) -> None:
        self.outcomes += self.taker.pull(ref, EDGE, self.now)

    def step(self, keep=lambda _m: True) -> None:
        sender, message = self.wire.pop(0)
        self.sent.append(message)
        if not keep(message):
            return
        if sender == DEVICE:
            self.giver.handle(DEVICE, message, self.now)
        else:
            self.outcomes += self.taker.handle(EDGE, message, self.now)[0]

    def run(self, keep=lambda _m: True, most: int = 10_000) -> None:
        for _ in range(most):
            if self.wire:
                self.step(keep)
            elif self.taker.wake_at() is not None:
                self.now = there(self.taker.wake_at())
                self.taker.tick(self.now)
            else:
                return
        raise AssertionError("it does not end")


@pytest.mark.parametrize("size", [0, 1, LEAF - 1, LEAF, LEAF + 1, 100 * LEAF + 7, 5 << 20])
@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_blobs_of_all_sizes_arrive(size, kind, tmp_path) -> None:
    pair = Pair(taker=FolderBlobs(tmp_path) if kind == "folder" else None)
    data = os.urandom(size)
    ref = pair.give(data)
    pair.pull(ref)
    pair.run()
    assert pair.outcomes == [Pulled(ref.digest)]
    assert pair.taker_blobs.read(ref.digest) == data
    assert pair.taker.pulling() == set()
    assert pair.taker.wake_at() is None


def test_local_blob_is_not_fetched() -> None:
    pair = Pair()
    ref = pair.give(b"data")
    pair.taker_blobs.put(b"data")
    pair.pull(ref)
    assert pair.outcomes == [Pulled(ref.digest)]
    assert pair.wire == []


def test_in_flight_chunks_stay_within_the_window() -> None:
    pair = Pair()
    pair.pull(pair.give(os.urandom(200 * LEAF)))
    flying = most = 0
    while pair.wire:
        message = pair.wire[0][1]
        if isinstance(message, Fetch):
            flying += message.count
        elif isinstance(message, Chunk):
            flying -= -(-len(message.data) // LEAF)
            assert len(message.data) <= LIMIT
        most = max(most, flying)
        pair.step()
    assert most == WINDOW
    assert len(pair.outcomes) == 1


@pytest.mark.parametrize("seed", range(5))
def test_lost_repeated_and_reordered_chunks_are_tolerated(seed) -> None:
    draw = random.Random(seed)
    pair = Pair()
    data = os.urandom(90 * LEAF + 1)
    ref = pair.give(data)
    pair.pull(ref)

    def shake(_message) -> bool:
        draw.shuffle(pair.wire)
        if pair.wire and draw.random() < 0.3:
            pair.wire.append(draw.choice(pair.wire))
        return draw.random() > 0.3

    pair.run(shake)
    assert pair.outcomes == [Pulled(ref.digest)]
    assert pair.taker_blobs.read(ref.digest) == data


def test_transfer_resumes_after_restart(tmp_path) -> None:
    data = os.urandom(40 * LEAF)
    first = Pair(taker=FolderBlobs(tmp_path))
    ref = first.give(data)
    first.pull(ref)
    while sum(isinstance(message, Chunk) for message in first.sent) < 5:
        first.step()
    second = Pair(giver=first.giver_blobs, taker=FolderBlobs(tmp_path))
    second.giver.grant(DEVICE, [ref.digest])
    second.pull(ref)
    second.run()
    moved = sum(-(-len(message.data) // LEAF) for message in second.sent if isinstance(message, Chunk))
    before = sum(-(-len(message.data) // LEAF) for message in first.sent if isinstance(message, Chunk))
    assert moved == 40 - before
    assert not any(isinstance(message, FetchHashes) for message in second.sent)
    assert second.taker_blobs.read(ref.digest) == data


def test_corrupt_chunk_is_fetched_again() -> None:
    pair = Pair()
    data = os.urandom(10 * LEAF)
    ref = pair.give(data)
    pair.pull(ref)
    spoiled: list[int] = []

    def spoil(message) -> bool:
        if isinstance(message, Chunk) and not spoiled:
            spoiled.append(message.first)
            wrong = Chunk(message.digest, message.first, bytes(len(message.data)))
            pair.outcomes += pair.taker.handle(EDGE, wrong, 0.0)[0]
            return False
        return True

    pair.run(spoil)
    assert pair.taker_blobs.read(ref.digest) == data
    assert pair.now > 0


@pytest.mark.parametrize(
    "lie",
    [
        lambda hashes: bytes(len(hashes)),
        lambda hashes: hashes[:-1],
        lambda hashes: hashes + bytes(32),
        lambda hashes: b"",
        lambda hashes: hashes[:33],
    ],
)
def test_wrong_hashes_only_delay_the_transfer(lie) -> None:
    pair = Pair()
    data = os.urandom(6 * LEAF)
    ref = pair.give(data)
    pair.pull(ref)
    damaged: list[int] = []

    def spoil(message) -> bool:
        if isinstance(message, Hashes) and not damaged:
            damaged.append(1)
            wrong = Hashes(message.digest, message.first, lie(message.hashes))
            pair.outcomes += pair.taker.handle(EDGE, wrong, pair.now)[0]
            return False
        return True

    pair.run(spoil)
    assert pair.outcomes == [Pulled(ref.digest)]
    assert pair.taker_blobs.read(ref.digest) == data


def test_long_hash_lists_are_sent_in_parts() -> None:
    pair = Pair(limit=40_000)
    data = bytes(1500 * LEAF)
    ref = pair.give(data)
    pair.pull(ref)
    pair.run()
    lists = [message for message in pair.sent if isinstance(message, Hashes)]
    assert len(lists) == 2
    assert b"".join(message.hashes for message in lists) == leaf_hashes(data)
    assert pair.outcomes == [Pulled(ref.digest)]


def test_fetch_without_a_grant_is_answered_with_gone() -> None:
    pair = Pair()
    ref = pair.give(b"secret")
    pair.giver.handle(OTHER, Fetch(ref.digest, 0, 1), 0.0)
    assert pair.wire == [(EDGE, Gone(ref.digest))]


def test_deleted_blob_fails_the_pull() -> None:
    pair = Pair()
    ref = pair.give(b"data" * 20_000)
    pair.giver_blobs.sweep(set())
    pair.pull(ref)
    pair.run()
    assert pair.outcomes == [PullFailed(ref.digest, "gone")]


def test_forget_ends_grants_and_transfers() -> None:
    pair = Pair()
    kept, dropped = pair.give(b"kept"), pair.give(b"dropped")
    pair.giver.forget({kept.digest})
    for ref, kind in ((kept, Chunk), (dropped, Gone)):
        pair.giver.handle(DEVICE, Fetch(ref.digest, 0, 1), 0.0)
        assert isinstance(pair.wire.pop()[1], kind)
    pair.pull(kept)
    pair.taker.forget(set())
    assert pair.taker.pulling() == set()


@pytest.mark.parametrize("message", [FetchHashes, lambda digest, first: Fetch(digest, first, 1024)])
@pytest.mark.parametrize("first", [4, 5, 1000, (1 << 53) - 1])
def test_request_beyond_the_end_is_ignored(message, first, tmp_path) -> None:
    pair = Pair(giver=FolderBlobs(tmp_path))
    ref = pair.give(bytes(4 * LEAF))
    pair.giver.handle(DEVICE, message(ref.digest, first), 0.0)
    assert pair.wire == []


def test_messages_from_other_than_the_source_are_ignored() -> None:
    pair = Pair()
    ref = pair.give(bytes(100_000))
    pair.pull(ref)
    assert pair.taker.handle(OTHER, Gone(ref.digest), 0.0) == ([], False)
    assert pair.taker.pulling() == {ref.digest}


def test_unrequested_chunks_are_dropped() -> None:
    pair = Pair()
    assert pair.taker.handle(EDGE, Chunk(bytes(32), 0, b"data"), 0.0) == ([], False)
    ref = pair.give(os.urandom(3 * LEAF))
    pair.pull(ref)
    assert pair.taker.handle(EDGE, Chunk(ref.digest, 1 << 50, bytes(LEAF)), 0.0) == ([], False)
    pair.run()
    assert pair.outcomes == [Pulled(ref.digest)]


@pytest.mark.parametrize("ref", [Ref(bytes(32), 0), Ref(bytes(32), MAX_BLOB_BYTES + 1), Ref(bytes(32), (1 << 53) - 1)])
def test_impossible_blobs_are_not_fetched(ref) -> None:
    pair = Pair()
    pair.pull(ref)
    assert pair.outcomes == [PullFailed(ref.digest, "gone")]
    assert not pair.taker_blobs.has(ref.digest)


def test_wrong_single_leaf_blob_is_rejected() -> None:
    pair = Pair()
    pair.pull(Ref(digest_of(b"right"), 5))
    assert pair.taker.handle(EDGE, Chunk(digest_of(b"right"), 0, b"wrong"), 0.0) == ([], False)
    assert pair.outcomes == []


@pytest.mark.parametrize("when", ["write", "add_hashes"])
def test_full_disk_fails_the_pull_and_a_retry_resumes(when, tmp_path, monkeypatch) -> None:
    pair = Pair(taker=FolderBlobs(tmp_path))
    data = os.urandom(10 * LEAF)
    ref = pair.give(data)

    def full(*_args):
        raise DiskFull("no space")

    monkeypatch.setattr(f"sojourn.store.blobs.FolderPartial.{when}", full)
    pair.pull(ref)
    pair.run()
    assert pair.outcomes == [PullFailed(ref.digest, "disk")]
    monkeypatch.undo()
    pair.pull(ref)
    pair.run()
    assert pair.outcomes[-1] == Pulled(ref.digest)
    assert pair.taker_blobs.read(ref.digest) == data


def test_pull_moves_to_another_source() -> None:
    pair = Pair()
    ref = pair.give(os.urandom(5 * LEAF))
    pair.outcomes += pair.taker.pull(ref, OTHER, 0.0)
    pair.wire.clear()
    pair.pull(ref)
    pair.run()
    assert pair.outcomes == [Pulled(ref.digest)]


def test_retries_back_off() -> None:
    pair = Pair()
    pair.pull(Ref(digest_of(b"never"), 5))
    pauses = []
    for _ in range(6):
        due = there(pair.taker.wake_at())
        pauses.append(due - pair.now)
        pair.now = due
        pair.taker.tick(pair.now)
    assert pauses == [2, 4, 8, 15, 15, 15]


def test_wrong_hash_list_from_earlier_process_is_discarded(tmp_path) -> None:
    data = bytes(3 * LEAF)
    ref = ref_of(data)
    FolderBlobs(tmp_path / "taker").partial(ref.digest, ref.size).add_hashes(0, bytes(3 * 32))
    sent: list[object] = []
    taker = Exchange(FolderBlobs(tmp_path / "taker"), lambda _, message: sent.append(message), lambda _: 60_000)
    assert taker.pull(ref, EDGE, 0.0) == []
    assert sent == [FetchHashes(ref.digest, 0)]
    assert not (tmp_path / "taker" / f"{ref.digest.hex()}.hashes").exists()
