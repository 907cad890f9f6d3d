"""What it costs to move a blob between two nodes: the real exchange is tried once with a blob of that size.

So bytes, messages and round trips are those of the protocol, whatever it comes to be.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from fleet_sim.world.world import World
from sojourn.links.memory import MemoryLink
from sojourn.node.exchange import Exchange
from sojourn.node.machine import Pulled
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Ref
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from sojourn.links.link import Link
    from sojourn.profile import LinkProfile
    from sojourn.protocol.messages import Message

USUAL_NUMBER = 1000
"""A packet's number takes one to nine bytes; most take three."""
GIVER, TAKER = Address("edge", "giver"), Address("device", "taker")


class TransferCost(msgspec.Struct, frozen=True):
    """Bytes from the giver and back, messages from either, and the seconds that all takes on idle lines."""

    given: int
    asked: int
    seconds: float


class _End:
    """One end of the trial: an exchange on a link, without a role."""

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
        """Nothing is to be said."""

    def link_down(self, link: Link, reason: str) -> None:
        """Links in memory stay up."""

    def arrived(self, _link: Link, _topic: str, payload: bytes) -> None:
        """A message of the blob protocol came."""
        message = unpack(payload, self._there, self._here).message
        outcomes, _ = self.exchange.handle(self._there, message, self._world.now)  # type: ignore[arg-type]
        self.done = self.done or any(isinstance(outcome, Pulled) for outcome in outcomes)


@lru_cache(maxsize=4096)
def transfer_cost(
    size: int, limits: tuple[int, int], giver: LinkProfile | None, taker: LinkProfile | None
) -> TransferCost:
    """The cost of moving a blob of this size; `limits` are the payloads that the giver's and the taker's link take."""
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
