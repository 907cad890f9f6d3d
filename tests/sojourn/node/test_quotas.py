"""What one peer may take of a node is bounded, whatever it does; honest nodes do not notice."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import msgspec
import pytest

from sojourn import WIRE
from sojourn.node import node as node_module
from sojourn.node.driver import MOST_WAITING, Driver
from sojourn.node.exchange import ENOUGH, WINDOW, Exchange
from sojourn.node.machine import Pulled, PullFailed
from sojourn.node.quotas import QUOTAS, SpeakingRate
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack
from sojourn.protocol.limits import SHORTEST
from sojourn.protocol.messages import Birth, Chunk, Discarded, Fetch, FetchHashes, Gone, Progress, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Ref, VisitId
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


@pytest.mark.parametrize("said", [None, Birth(OFFER)], ids=["no birth", "a birth without a version"])
def test_an_older_device_gets_its_answer_though_it_breaks_the_limits(said: Birth | None) -> None:
    bed = edge()
    if said:
        bed.presence(DEVICE, said)
    visited(bed, **DIVERGED)
    assert bed.sent() == [Discarded(VISIT, "this attempt is no longer wanted")]
    assert not bed.node.dropped


def test_a_device_of_today_is_held_to_the_limits_until_an_older_one_takes_its_place() -> None:
    bed = edge()
    bed.presence(DEVICE, Birth(OFFER, WIRE))
    visited(bed, **DIVERGED)
    assert bed.sent() == []
    assert bed.node.dropped == {"d": 1}
    bed.presence(DEVICE, Birth(OFFER), Epoch(EPOCH.count, b"another1"))
    visited(bed, **DIVERGED)
    assert len(bed.sent()) == 1


def test_every_birth_says_its_version() -> None:
    for bed in (agent(), edge(), cloud()):
        bed.node.link_up(bed.wire, 1.0)
        _, payload, retained = bed.wire.published[-1]
        assert retained
        assert msgpack.unpackb(payload)["wire"] == WIRE == 2


# --- messages


def test_who_speaks_too_quickly_is_not_heard_for_the_rest_and_others_are() -> None:
    bed = edge()
    bed.node._rate = SpeakingRate()
    burst = int(QUOTAS["device"].burst)
    for _ in range(burst + 500):
        bed.say("d", LATE, now=1.0)
    assert len(bed.sent()) == burst
    assert bed.node.dropped == {"d": 500}
    bed.say("other", LATE, now=1.0)
    assert len(bed.sent()) == burst + 1
    for _ in range(500):
        bed.say("d", LATE, now=2.0)
    assert len(bed.sent()) == burst + 1 + QUOTAS["device"].messages


def test_births_count_as_messages() -> None:
    bed = edge()
    bed.node._rate = SpeakingRate()
    for number in range(3000):
        bed.presence(DEVICE, Birth(OFFER), Epoch(number, b"12345678"))
    assert bed.node.dropped == {"d": 3000 - QUOTAS["device"].burst}


def test_without_a_rate_nobody_is_held_back() -> None:
    bed = edge()
    for _ in range(5000):
        bed.say("d", LATE)
    assert not bed.node.dropped


def test_at_most_so_many_nodes_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "MEMBERS", 3)
    bed = edge()
    for number in range(5):
        bed.presence(Address("device", f"d{number}"), Birth(OFFER))
    assert sorted(bed.machine.roster.members) == ["d0", "d1", "d2"]
    bed.presence(Address("device", "d1"), Birth(OFFER), Epoch(9, b"12345678"))
    assert bed.machine.roster.members["d1"].epoch.count == 9


def test_senders_of_rubbish_are_counted_one_by_one_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "SENDERS", 2)
    bed = edge()
    for name in ("a", "b", "x", "y", "a"):
        bed.raw(topics.inbox(FLEET, bed.node.address, name), b"rubbish")
    assert bed.node.dropped == {"a": 2, "b": 1, "others": 2}


def test_blobs_that_ride_along_are_kept_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUOTAS, "device", QUOTAS["device"]._replace(inlined=5000))
    bed = edge()
    contents = [bytes([number]) * 1000 for number in range(8)]
    for content in contents:
        ref = ref_of(content, "float32")
        bed.say("d", Visited(VISIT, {"model": Ref(ref.digest, ref.size, "float32", inline=content)}, 5, {}))
    held = [bed.node.store.blobs.has(ref_of(content).digest) for content in contents]
    assert held == [True] * 5 + [False] * 3
    assert len(bed.sent()) == 8


def test_what_waits_to_be_read_is_bounded() -> None:
    bed = edge()
    driver = Driver(bed.node)
    for _ in range(MOST_WAITING // (1 << 20) + 5):
        driver.arrived(bed.wire, "t", bytes(1 << 20))
    assert driver._queue.qsize() == MOST_WAITING >> 20


def test_a_lease_as_short_as_can_be_does_not_keep_a_device_awake() -> None:
    bed = agent()
    bed.say("e", msgspec.structs.replace(visit(), lease=1e-300), now=1.0)
    bed.node.tick(1.0)
    assert there(bed.node.wake_at()) >= 1.0 + SHORTEST


# --- blobs


class Talk:
    """An exchange, and what it said."""

    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        self.said: list[Any] = []
        self.exchange = Exchange(self.blobs, lambda _to, message: self.said.append(message), lambda _to: 60_000)


def test_a_peer_fetches_a_blob_a_few_times_over_and_then_needs_the_reference_again() -> None:
    it, content = Talk(), bytes(10 * LEAF)
    ref = ref_of(content)
    it.blobs.put(content, ref.digest)
    it.exchange.grant(DEVICE, [ref.digest])
    leaves = 0
    for _ in range(100):
        it.said.clear()
        it.exchange.handle(DEVICE, Fetch(ref.digest, 0, 10), 1.0)
        leaves += sum(len(message.data) // LEAF for message in it.said if isinstance(message, Chunk))
    assert leaves == (ENOUGH + 1) * 10 + 6 * 10 == 150
    assert leaves <= ENOUGH * 10 + 2 * WINDOW + 10
    it.exchange.handle(DEVICE, FetchHashes(ref.digest, 0), 1.0)
    assert it.said == []
    it.exchange.grant(DEVICE, [ref.digest])
    assert it.exchange.handle(DEVICE, Fetch(ref.digest, 0, 10), 1.0) == ([], True)


def test_only_so_much_is_fetched_from_one_node_at_a_time() -> None:
    it = Talk()
    quota = QUOTAS["device"]
    refs = [Ref(bytes([number]) * 32, 5) for number in range(quota.pulls + 1)]
    assert [it.exchange.pull(ref, DEVICE, 0.0) for ref in refs[:-1]] == [[]] * quota.pulls
    assert it.exchange.pull(refs[-1], DEVICE, 0.0) == [PullFailed(refs[-1].digest, "gone")]
    assert it.exchange.pull(refs[0], DEVICE, 0.0) == []  # that one is under way
    assert it.exchange.pull(refs[-1], EDGE, 0.0) == []
    it.exchange.handle(DEVICE, Gone(refs[0].digest), 0.0)
    assert it.exchange.pull(Ref(bytes(31) + b"!", 5), DEVICE, 0.0) == []


def test_only_so_many_bytes_are_fetched_from_one_node_at_a_time() -> None:
    it = Talk()
    large = [Ref(bytes([number]) * 32, 1 << 32) for number in range(3)]
    assert [it.exchange.pull(ref, DEVICE, 0.0) for ref in large] == [[], [], [PullFailed(large[2].digest, "gone")]]
    it.exchange.forget(frozenset({large[0].digest}))
    assert it.exchange.pull(large[2], DEVICE, 0.0) == []


def test_what_has_arrived_or_moved_to_another_node_is_no_longer_under_way() -> None:
    it, content = Talk(), b"model"
    ref = ref_of(content)
    assert it.exchange.pull(ref, DEVICE, 0.0) == []
    assert it.exchange.pull(ref, EDGE, 0.0) == []
    assert it.exchange._under_way == {EDGE: {ref.digest: 5}}
    assert it.exchange.handle(EDGE, Chunk(ref.digest, 0, content), 1.0) == ([Pulled(ref.digest)], True)
    assert it.exchange._under_way == {}
