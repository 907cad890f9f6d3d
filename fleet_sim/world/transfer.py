"""The cost of transfers: bytes counted on a link, and bytes and seconds of moving a blob between two nodes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from fleet_sim.world.world import World
from sojourn.links.link import Link
from sojourn.links.memory import MemoryBroker, MemoryLink
from sojourn.links.settings import OWN_BROKER_PAYLOAD
from sojourn.node.exchange import Exchange
from sojourn.node.machine import Pulled
from sojourn.profile import LinkProfile
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Ref
from sojourn.store.memory_blobs import MemoryBlobs


class CountedLink(MemoryLink):
    """Counts payload bytes down and up, as the device's provider would."""

    def __init__(self, broker: MemoryBroker, profile: LinkProfile | None = None) -> None:
        super().__init__(broker, OWN_BROKER_PAYLOAD, profile)
        self._came = self._went = 0

    def carry(self, topic: str, payload: bytes) -> None:
        """Deliver a message from the broker."""
        self._came += len(payload)
        super().carry(topic, payload)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, unless closed."""
        self._went += len(payload)
        super().publish(topic, payload, retain=retain)

    def moved(self, sent: int, received: int) -> None:
        """Count bytes of a computed transfer."""
        self._went += sent
        self._came += received

    def taken(self) -> tuple[int, int]:
        """Return bytes down and up since the last call."""
        came, went = self._came, self._went
        self._came = self._went = 0
        return came, went


# The cost is measured by running the real exchange once with a blob of that size. Bytes, messages and round trips
# therefore follow every change of the protocol.

USUAL_NUMBER = 1000
"""A packet number takes one to nine bytes; most take three."""
GIVER, TAKER = Address("edge", "giver"), Address("device", "taker")


class TransferCost(msgspec.Struct, frozen=True):
    """Bytes sent and received by the giver, messages of both, and the total seconds on idle lines."""

    given: int
    asked: int
    seconds: float


class _End:
    """One end of the measured exchange: an exchange on a link, without a role."""

    def __init__(self, here: Address, there: Address, link: MemoryLink, world: World) -> None:
        self._here, self._there, self._link, self._world = here, there, link, world
        self.blobs, self.sent, self.done = MemoryBlobs(), 0, False
        self.exchange = Exchange(self.blobs, self._send, lambda _to: link.payload_limit)
        link.open(self, [here.name], None)

    def _send(self, _to: Address, message: Message) -> None:
        payload = pack(Packet(USUAL_NUMBER, Epoch(1, bytes(8)), message))
        self.sent += len(payload)
        self._link.publish(self._there.name, payload)

    def link_up(self, link: Link) -> None:
        """Do nothing."""

    def link_down(self, link: Link, reason: str) -> None:
        """Links in memory stay up."""

    def arrived(self, _link: Link, _topic: str, payload: bytes) -> None:
        """Handle a message of the blob protocol."""
        message = unpack(payload, self._there, self._here).message
        outcomes, _ = self.exchange.handle(self._there, message, self._world.now)
        self.done = self.done or any(isinstance(outcome, Pulled) for outcome in outcomes)


@lru_cache(maxsize=4096)
def transfer_cost(
    size: int, limits: tuple[int, int], giver: LinkProfile | None, taker: LinkProfile | None
) -> TransferCost:
    """Return the cost of moving a blob of this size; `limits` are the maximum payloads of giver and taker."""
    world = World()
    broker = world.broker()
    ends = [
        _End(here, there, MemoryLink(broker, limit, profile), world)
        for here, there, limit, profile in ((GIVER, TAKER, limits[0], giver), (TAKER, GIVER, limits[1], taker))
    ]
    digest = ends[0].blobs.put(bytes(size))
    ends[0].exchange.grant(TAKER, [digest])
    ends[1].exchange.pull(Ref(digest, size), GIVER, 0.0)
    world.run(lambda: ends[1].done)
    return TransferCost(ends[0].sent, ends[1].sent, world.now)
