"""How messages and small blobs travel from one node to another: as packets on its links.

A node is given a `Transport`, and does not depend on how messages travel.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sojourn.errors import DiskFull, LinkError
from sojourn.links.link import Link
from sojourn.node.exchange import Exchange
from sojourn.node.peers import QUOTAS
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, kind, pack, unpack
from sojourn.protocol.messages import map_refs, refs
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Ref
from sojourn.store.blobs import BlobStore, verified

log = logging.getLogger("sojourn")


@dataclass(slots=True, eq=False)
class Delivery:
    """A message that arrived. `size`: its bytes on the wire; `blobs`: the references that contain their blob."""

    sender: Address
    epoch: Epoch
    message: Message
    size: int
    blobs: Sequence[Ref] = ()


class Transport(Protocol):
    """Carries the messages of one node to its peers, and fetches blobs from them."""

    def exchange(self, send: Callable[[Address, Message], None], limit: Callable[[Address], int]) -> Exchange:
        """Return the blob exchange of the node; `send` sends its messages, `limit` is the largest payload to a peer."""

    def send(self, to: Address, packet: Packet, inlined: Mapping[bytes, Ref]) -> int:
        """Send a packet once; return its bytes on the wire, 0 if it was not sent.

        `inlined`: the message's references, by digest, that contain their blob.
        """

    def keep(self, sender: Address, blobs: Sequence[Ref]) -> None:
        """Store the blobs that came with a message; one that cannot be stored is fetched later."""

    def swept(self) -> None:
        """Reset the quotas of inlined blobs after unreferenced blobs were deleted."""


class PacketTransport:
    """Packs messages and publishes them on links. Validates everything that it receives."""

    def __init__(self, fleet: str, address: Address, links: Mapping[Role, Link], blobs: BlobStore) -> None:
        self._fleet = fleet
        self._address = address
        self._links = links
        self._blobs = blobs
        self._kept: Counter[Address] = Counter()
        """Bytes of blobs in each peer's messages since the last sweep."""

    def exchange(self, send: Callable[[Address, Message], None], limit: Callable[[Address], int]) -> Exchange:
        """Return an exchange that fetches blobs in chunks."""
        return Exchange(self._blobs, send, limit)

    def send(self, to: Address, packet: Packet, inlined: Mapping[bytes, Ref]) -> int:
        """Pack and publish a packet."""
        if inlined:
            unused = dict(inlined)
            filled: Message = map_refs(packet.message, lambda ref: unused.pop(ref.digest, ref))
            packet = msgspec.structs.replace(packet, message=filled)
        payload = pack(packet)
        try:
            self._links[to.role].publish(topics.inbox(self._fleet, to, self._address.name), payload)
        except LinkError as error:
            log.error("cannot send %r to %s: %s", kind(packet.message), to, error)  # noqa: TRY400
            return 0
        return len(payload)

    def keep(self, sender: Address, blobs: Sequence[Ref]) -> None:
        """Verify and store blobs, up to the sender's quota."""
        for ref in blobs:
            content = ref.inline or b""
            self._kept[sender] += len(content)
            if self._kept[sender] > QUOTAS[sender.role].inlined:
                continue
            try:
                self._blobs.put(verified(content, ref), ref.digest)
            except DiskFull as error:  # the blob is fetched later, which may be refused
                log.warning("%s", error)

    def swept(self) -> None:
        """Reset the count."""
        self._kept.clear()


def read_delivery(payload: bytes, sender: Address, to: Address) -> Delivery:
    """Return the message in a payload, without the blobs in its references; raise InvalidMessage if it is invalid."""
    packet = unpack(payload, sender, to)
    message: Message = packet.message
    blobs = [ref for ref in refs(message) if ref.inline is not None]
    if blobs:
        message = map_refs(message, lambda ref: Ref(ref.digest, ref.size, ref.encoding, ref.delta))
    return Delivery(sender, packet.epoch, message, len(payload), blobs)
