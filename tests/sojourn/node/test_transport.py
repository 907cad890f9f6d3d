"""A node sends and receives through the transport that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pytest

from edge_agent.agent import Agent
from sojourn.errors import InvalidBlob
from sojourn.node.exchange import Exchange
from sojourn.node.node import Node
from sojourn.node.transport import Delivery, PacketTransport, read_delivery
from sojourn.protocol.envelope import Packet, inlined_size
from sojourn.protocol.messages import RosterAsk, Visited
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Ref, VisitId
from sojourn.store.blobs import ref_of
from sojourn.store.journal import MemoryStore
from sojourn.store.memory_blobs import MemoryBlobs
from tests.sojourn.node.test_node import EPOCH, FLEET, OFFER, IdleWorkers, Wire, visit

DEVICE, EDGE = Address("device", "d"), Address("edge", "e")
VISIT = VisitId("job", 1, 0, 0, (1, 1))
CONTENT = b"a model"


class Recorder:
    """A transport that remembers what was sent and kept. Every packet has 100 bytes."""

    def __init__(self) -> None:
        self.sent: list[Packet] = []
        self.kept: list[Ref] = []
        self.swept_times = 0

    def exchange(self, send: Callable[[Address, Message], None], limit: Callable[[Address], int]) -> Exchange:
        return Exchange(MemoryBlobs(), send, limit)

    def send(self, to: Address, packet: Packet, inlined: Mapping[bytes, Ref]) -> int:
        assert to == EDGE
        assert not inlined
        self.sent.append(packet)
        return 100

    def keep(self, sender: Address, blobs: Sequence[Ref]) -> None:
        assert sender == EDGE
        self.kept += blobs

    def swept(self) -> None:
        self.swept_times += 1


def test_node_uses_its_transport_and_not_its_links() -> None:
    wire, recorder = Wire(), Recorder()
    node = Node(FLEET, Agent("d", OFFER), MemoryStore(), {"edge": wire}, IdleWorkers(), transport=recorder)
    node.start(0.0, lambda _event: None)
    ref = Ref(bytes(32), 7, inline=CONTENT)
    node.deliver(Delivery(EDGE, EPOCH, visit(), 1000, [ref]), 1.0)
    assert [type(packet.message).__name__ for packet in recorder.sent] == ["Fetch", "Fetch"]
    assert [packet.id for packet in recorder.sent] == [1, 2]
    assert recorder.kept == [ref]
    assert (node.received, node.sent) == (1000, 200)
    assert wire.published == []
    assert not node.idle
    node.tick(31.0)
    assert recorder.swept_times == 1


def test_packet_carries_blobs_in_its_references() -> None:
    wire, blobs = Wire(), MemoryBlobs()
    transport = PacketTransport(FLEET, DEVICE, {"edge": wire}, blobs)
    ref = ref_of(CONTENT, "float32")
    packet = Packet(1, EPOCH, Visited(VISIT, {"model": ref, "control": ref}, 5, {}))
    plain = transport.send(EDGE, packet, {})
    grown = transport.send(EDGE, packet, {ref.digest: msgspec.structs.replace(ref, inline=CONTENT)})
    assert grown == plain + inlined_size(CONTENT)  # once, however many references there are
    without, with_blob = (read_delivery(payload, DEVICE, EDGE) for _, payload, _ in wire.published)
    assert (without.message, without.blobs, without.size) == (packet.message, [], plain)
    assert (with_blob.message, with_blob.size) == (packet.message, grown)
    transport.keep(DEVICE, with_blob.blobs)
    assert blobs.read(ref.digest) == CONTENT


def test_size_of_an_unsent_packet_is_zero() -> None:
    wire = Wire()
    wire.broken = True
    transport = PacketTransport(FLEET, DEVICE, {"edge": wire}, MemoryBlobs())
    assert transport.send(EDGE, Packet(1, EPOCH, RosterAsk()), {}) == 0


def test_blob_with_a_wrong_digest_is_not_kept() -> None:
    blobs = MemoryBlobs()
    ref = msgspec.structs.replace(ref_of(CONTENT), inline=b"another")
    with pytest.raises(InvalidBlob):
        PacketTransport(FLEET, EDGE, {}, blobs).keep(DEVICE, [ref])
    assert not blobs.has(ref.digest)
