"""What one peer may use of a node is bounded; honest nodes stay within the bounds."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import msgspec
import pytest

from sojourn import WIRE
from sojourn.node import reception
from sojourn.node.driver import MAX_UNREAD_BYTES, Driver
from sojourn.node.exchange import MAX_REPEATS, WINDOW, Exchange
from sojourn.node.machine import Pulled, PullFailed
from sojourn.node.peers import QUOTAS
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.limits import SHORTEST
from sojourn.protocol.messages import Birth, Chunk, Fetch, FetchHashes, Gone, Progress, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Ref, VisitId
from sojourn.rate_limiter import RateLimiter
from sojourn.store.blobs import LEAF, ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.sojourn.node.test_node import EPOCH, FLEET, OFFER, Bed, agent, cloud, edge, visit
from tests.there import there

DEVICE, EDGE = Address("device", "d"), Address("edge", "e")
VISIT = VisitId("job", 1, 0, 0, (1, 1))
LATE = Progress(VISIT, "training", 1, 2)
DIVERGED: dict[str, Any] = {"samples": (1 << 53) - 1, "metrics": {"loss": math.nan}}


def visited(bed: Bed, **changes: Any) -> None:
    fields = msgpack.unpackb(pack(Packet(1, EPOCH, Visited(VISIT, {}, 5, {})))) | changes
    bed.raw(topics.inbox(FLEET, bed.node.address, "d"), msgpack.packb(fields))


# --- versions


def test_a_message_beyond_the_limits_is_dropped() -> None:
    bed = edge()
    bed.presence(DEVICE, Birth(OFFER, WIRE))
    visited(bed, **DIVERGED)
    assert bed.sent() == []
    assert bed.node.reception.dropped == {"d": 1}


def test_every_birth_states_its_wire_version() -> None:
    for bed in (agent(), edge(), cloud()):
        bed.node.link_up(bed.wire, 1.0)
        _, payload, retained = bed.wire.published[-1]
        assert retained
        assert msgpack.unpackb(payload)["wire"] == WIRE == 2


# --- messages


def test_rate_limit_drops_excess_of_one_sender_only() -> None:
    bed = edge()
    bed.node.reception.rate_limiter = RateLimiter()
    burst = int(QUOTAS["device"].messages.burst)
    for _ in range(burst + 500):
        bed.report("d", LATE, now=1.0)
    assert len(bed.sent()) == burst
    assert bed.node.reception.dropped == {"d": 500}
    bed.report("other", LATE, now=1.0)
    assert len(bed.sent()) == burst + 1
    for _ in range(500):
        bed.report("d", LATE, now=2.0)
    assert len(bed.sent()) == burst + 1 + QUOTAS["device"].messages.per_second


def test_births_count_toward_the_rate_limit() -> None:
    bed = edge()
    bed.node.reception.rate_limiter = RateLimiter()
    for number in range(3000):
        bed.presence(DEVICE, Birth(OFFER), Epoch(number, b"12345678"))
    assert bed.node.reception.dropped == {"d": 3000 - QUOTAS["device"].messages.burst}


def test_no_messages_are_dropped_without_a_rate_limiter() -> None:
    bed = edge()
    for _ in range(5000):
        bed.report("d", LATE)
    assert not bed.node.reception.dropped


def test_known_members_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "MAX_DEVICES_PER_SITE", 3)
    bed = edge()
    for number in range(5):
        bed.presence(Address("device", f"d{number}"), Birth(OFFER))
    assert sorted(bed.machine.roster.members) == ["d0", "d1", "d2"]
    bed.presence(Address("device", "d1"), Birth(OFFER), Epoch(9, b"12345678"))
    assert bed.machine.roster.members["d1"].epoch.count == 9


def test_per_sender_drop_counts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "SENDERS", 2)
    bed = edge()
    for name in ("a", "b", "x", "y", "a"):
        bed.raw(topics.inbox(FLEET, bed.node.address, name), b"rubbish")
    assert bed.node.reception.dropped == {"a": 2, "b": 1, "others": 2}


def test_inlined_bytes_are_bounded_per_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUOTAS, "device", QUOTAS["device"]._replace(inlined=5000))
    bed = edge()
    contents = [bytes([number]) * 1000 for number in range(8)]
    for content in contents:
        ref = ref_of(content, "float32")
        bed.report("d", Visited(VISIT, {"model": Ref(ref.digest, ref.size, "float32", inline=content)}, 5, {}))
    held = [bed.node.store.blobs.has(ref_of(content).digest) for content in contents]
    assert held == [True] * 5 + [False] * 3
    assert len(bed.sent()) == 8


def test_unread_queue_is_bounded() -> None:
    bed = edge()
    driver = Driver(bed.node)
    for _ in range(MAX_UNREAD_BYTES // (1 << 20) + 5):
        driver.arrived(bed.wire, "t", bytes(1 << 20))
    assert driver._queue.qsize() == MAX_UNREAD_BYTES >> 20


def test_tiny_lease_does_not_keep_a_device_awake() -> None:
    bed = agent()
    bed.report("e", msgspec.structs.replace(visit(), lease=1e-300), now=1.0)
    bed.node.tick(1.0)
    assert there(bed.node.wake_at()) >= 1.0 + SHORTEST


# --- blobs


class Talk:
    """An exchange, and the messages that it sent."""

    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        self.output: list[Any] = []
        self.exchange = Exchange(self.blobs, lambda _to, message: self.output.append(message), lambda _to: 60_000)


def test_blob_fetches_are_bounded_until_a_new_grant() -> None:
    it, content = Talk(), bytes(10 * LEAF)
    ref = ref_of(content)
    it.blobs.put(content, ref.digest)
    it.exchange.grant(DEVICE, [ref.digest])
    leaves = 0
    for _ in range(100):
        it.output.clear()
        it.exchange.handle(DEVICE, Fetch(ref.digest, 0, 10), 1.0)
        leaves += sum(len(message.data) // LEAF for message in it.output if isinstance(message, Chunk))
    assert leaves == (MAX_REPEATS + 1) * 10 + 6 * 10 == 150
    assert leaves <= MAX_REPEATS * 10 + 2 * WINDOW + 10
    it.exchange.handle(DEVICE, FetchHashes(ref.digest, 0), 1.0)
    assert it.output == []
    it.exchange.grant(DEVICE, [ref.digest])
    assert it.exchange.handle(DEVICE, Fetch(ref.digest, 0, 10), 1.0) == ([], True)


def test_concurrent_pulls_from_one_node_are_bounded() -> None:
    it = Talk()
    quota = QUOTAS["device"]
    refs = [Ref(bytes([number]) * 32, 5) for number in range(quota.pulls + 1)]
    assert [it.exchange.pull(ref, DEVICE, 0.0) for ref in refs[:-1]] == [[]] * quota.pulls
    assert it.exchange.pull(refs[-1], DEVICE, 0.0) == [PullFailed(refs[-1].digest, "gone")]
    assert it.exchange.pull(refs[0], DEVICE, 0.0) == []  # that one is under way
    assert it.exchange.pull(refs[-1], EDGE, 0.0) == []
    it.exchange.handle(DEVICE, Gone(refs[0].digest), 0.0)
    assert it.exchange.pull(Ref(bytes(31) + b"!", 5), DEVICE, 0.0) == []


def test_bytes_in_transfer_from_one_node_are_bounded() -> None:
    it = Talk()
    large = [Ref(bytes([number]) * 32, 1 << 32) for number in range(3)]
    assert [it.exchange.pull(ref, DEVICE, 0.0) for ref in large] == [[], [], [PullFailed(large[2].digest, "gone")]]
    it.exchange.forget(frozenset({large[0].digest}))
    assert it.exchange.pull(large[2], DEVICE, 0.0) == []


def test_completed_or_moved_pull_frees_its_quota() -> None:
    it, content = Talk(), b"model"
    ref = ref_of(content)
    assert it.exchange.pull(ref, DEVICE, 0.0) == []
    assert it.exchange.pull(ref, EDGE, 0.0) == []
    assert it.exchange._pulling == {EDGE: {ref.digest: 5}}
    assert it.exchange.handle(EDGE, Chunk(ref.digest, 0, content), 1.0) == ([Pulled(ref.digest)], True)
    assert it.exchange._pulling == {}
