"""The transport of simulated nodes: messages and blobs are passed in memory, and only their cost is computed.

Models are bit for bit those of packets on links (`simulation.transfers = "simulated"`), bytes and seconds within 2 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from fleet_sim.world.transfer import transfer_cost
from fleet_sim.world.world import SimulatedNode, World
from sojourn.links.link import Link
from sojourn.links.memory import MemoryLink
from sojourn.node.exchange import Exchange, Outcome
from sojourn.node.machine import Pulled
from sojourn.node.transport import Delivery
from sojourn.protocol.envelope import Packet, inlined_size, packed_size
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Ref
from sojourn.store.blobs import BlobStore

SIGN_OF_LIFE = 2.0
"""Seconds of a long transfer after which both nodes would have received chunks or requests for them."""


class Neighbours:
    """The nodes of a simulated fleet by name, for the transports of each."""

    def __init__(
        self, world: World, nodes: Mapping[str, SimulatedNode], wake: Callable[[str], SimulatedNode | None]
    ) -> None:
        """`wake` recreates a hibernated node by its name; it returns None if there is none."""
        self._world, self._nodes, self._wake = world, nodes, wake

    def transport(self, address: Address, links: Mapping[Role, Link], blobs: BlobStore) -> DirectTransport:
        """Return the transport of one node."""
        return DirectTransport(self, address, links, blobs)

    def send(self, link: Link, to: Address, delivery: Delivery) -> None:
        """Deliver a message after its transfer time; an offline node does not receive it."""
        taker = self._nodes.get(to.name) or self._wake(to.name)
        assert isinstance(link, MemoryLink)  # noqa: S101
        if taker is None:
            link.transfer(None, delivery.size, lambda: None)
            return
        into = taker.node.links[delivery.sender.role]
        assert isinstance(into, MemoryLink)  # noqa: S101
        link.transfer(into, delivery.size, partial(taker.deliver, delivery))

    def hand_over(self, ref: Ref, source: Address, to: Address, wanted: Callable[[], bool]) -> bool:
        """Copy a blob from `source` to `to` after its transfer time; `wanted` is called on arrival.

        Return False if the source is offline, lacks the blob or did not offer it.
        """
        giver, taker = self._nodes.get(source.name), self._nodes[to.name]
        if giver is None or not giver.alive or not giver.node.exchange.offers(ref.digest, to):
            return False
        out, into = giver.node.links[to.role], taker.node.links[source.role]
        assert isinstance(out, MemoryLink)  # noqa: S101
        assert isinstance(into, MemoryLink)  # noqa: S101
        content = giver.node.store.blobs.read(ref.digest)
        cost = transfer_cost(ref.size, (out.payload_limit, into.payload_limit), out.profile, into.profile)
        both = cost.given + cost.asked

        def here() -> None:
            out.moved(cost.given, cost.asked)
            into.moved(cost.asked, cost.given)
            out.broker.payload += both
            giver.run_if_alive(lambda now: _count(giver, to, both, now))
            if taker.alive:
                taker.node.store.blobs.put(content, ref.digest)
                taker.run_if_alive(lambda now: _count(taker, source, both, now))
                if wanted():
                    taker.run_if_alive(lambda now: taker.node.inject(Pulled(ref.digest), now))

        def sign_of_life() -> None:
            giver.run_if_alive(lambda now: _count(giver, to, 0, now))
            taker.run_if_alive(lambda now: _count(taker, source, 0, now))

        for sign in range(1, int(cost.seconds // SIGN_OF_LIFE) + 1):
            self._world.later(sign * SIGN_OF_LIFE, sign_of_life)
        lane = into.down or out.up
        if lane is None:
            self._world.later(cost.seconds, here)
        else:
            self._world.later(max(0.0, cost.seconds - lane.seconds(cost.given)), lambda: lane.send(cost.given, here))
        return True


def _count(simulated: SimulatedNode, peer: Address, size: int, now: float) -> None:
    """Count bytes between a node and a peer, in both directions."""
    simulated.node.received += size
    simulated.node.machine.on_traffic(peer, size, now, sign_of_life=True)


class DirectTransport:
    """Passes messages in memory between nodes of one process, which trust each other."""

    def __init__(self, neighbours: Neighbours, address: Address, links: Mapping[Role, Link], blobs: BlobStore) -> None:
        self._neighbours, self._address, self._links, self._blobs = neighbours, address, links, blobs
        self._epoch: Epoch | None = None
        self._epoch_size = 0

    def exchange(self, send: Callable[[Address, Message], None], limit: Callable[[Address], int]) -> Exchange:
        """Copy whole blobs where possible."""
        return DirectExchange(self._neighbours, self._address, self._blobs, send, limit)

    def send(self, to: Address, packet: Packet, inlined: Mapping[bytes, Ref]) -> int:
        """Deliver a message with its blobs next to it; compute its packed size."""
        epoch, message = packet.epoch, packet.message
        if epoch is not self._epoch:
            self._epoch, self._epoch_size = epoch, len(msgspec.msgpack.encode(epoch))
        size = packed_size(packet.id, self._epoch_size, message)
        blobs = tuple(inlined.values())
        for ref in blobs:
            size += inlined_size(ref.inline or b"")
        delivery = Delivery(self._address, epoch, message, size, blobs)
        self._neighbours.send(self._links[to.role], to, delivery)
        return size

    def keep(self, sender: Address, blobs: Sequence[Ref]) -> None:  # noqa: ARG002  # no peer here has a quota
        """Store a blob without verification."""
        for ref in blobs:
            self._blobs.put(ref.inline or b"", ref.digest)

    def swept(self) -> None:
        """Do nothing: there are no quotas."""


class DirectExchange(Exchange):
    """Pulls whole blobs from nodes of the process; uses the blob protocol if the source cannot offer them."""

    def __init__(
        self,
        neighbours: Neighbours,
        address: Address,
        blobs: BlobStore,
        send: Callable[[Address, Message], None],
        limit: Callable[[Address], int],
    ) -> None:
        super().__init__(blobs, send, limit)
        self._neighbours, self._address = neighbours, address
        self._coming: set[bytes] = set()
        """The digests of blobs being copied."""

    def pull(self, ref: Ref, source: Address, now: float) -> list[Outcome]:
        """Start to fetch a blob, or report at once that it is in the store."""
        digest = ref.digest
        if self._blobs.has(digest) or digest in self._transfers:
            return super().pull(ref, source, now)
        if digest in self._coming:
            return []
        if not self._neighbours.hand_over(ref, source, self._address, partial(self._arrived, digest)):
            return super().pull(ref, source, now)
        self._coming.add(digest)
        return []

    def pulling(self) -> set[bytes]:
        """The digests of pending transfers."""
        return super().pulling() | self._coming

    def forget(self, live: set[bytes] | frozenset[bytes]) -> None:
        """Drop grants and transfers of blobs that are no longer kept."""
        super().forget(live)
        self._coming &= live

    def _arrived(self, digest: bytes) -> bool:
        """Store a blob that has arrived; return whether the node still wants it."""
        wanted = digest in self._coming
        self._coming.discard(digest)
        return wanted
