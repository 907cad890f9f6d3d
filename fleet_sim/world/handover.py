"""Blobs and packets change hands inside one process; bytes and times are those that the way would have cost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fleet_sim.world.transfer_cost import transfer_cost
from sojourn.links.memory import MemoryLink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fleet_sim.world.world import SimulatedNode, World
    from sojourn.links.link import Link
    from sojourn.links.local_packet import LocalPacket
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Ref

SIGN = 2.0
"""Seconds of a long transfer after which its pieces would have been heard of."""


class HandOver:
    """The neighbours of a simulated fleet: all its nodes by name."""

    def __init__(
        self, world: World, nodes: Mapping[str, SimulatedNode], wake: Callable[[str], SimulatedNode | None]
    ) -> None:
        """`wake` makes a node that sleeps, by its name; None if there is none."""
        self._world, self._nodes, self._wake = world, nodes, wake

    def send(self, link: Link, to: Address, packet: LocalPacket) -> None:
        """Send a packet as it is; who is not there does not get it."""
        taker = self._nodes.get(to.name) or self._wake(to.name)
        assert isinstance(link, MemoryLink)  # noqa: S101
        if taker is None:
            link.hand(None, packet.size, lambda: None)
            return
        into = taker.node.links[packet.sender.role]
        assert isinstance(into, MemoryLink)  # noqa: S101
        link.hand(into, packet.size, partial(taker.take, into, packet))

    def hand_over(self, ref: Ref, source: Address, to: Address, arrived: Callable[[float], None]) -> bool:
        """Have a blob change hands, after the time that it would have been on the way."""
        giver, taker = self._nodes.get(source.name), self._nodes[to.name]
        if giver is None or not giver.alive or not giver.node.offers(ref.digest, to):
            return False
        out, into = giver.node.links[to.role], taker.node.links[source.role]
        assert isinstance(out, MemoryLink)  # noqa: S101
        assert isinstance(into, MemoryLink)  # noqa: S101
        cost = transfer_cost(ref.size, (out.payload_limit, into.payload_limit), out.profile, into.profile)
        content = giver.node.store.blobs.read(ref.digest)
        both = cost.given + cost.asked

        def here() -> None:
            out.moved(cost.given, cost.asked)
            into.moved(cost.asked, cost.given)
            out.broker.payload += both
            giver.hear(lambda now: giver.node.moved(to, both, now, spoke=True))
            if taker.alive:
                taker.node.store.blobs.put(content, ref.digest)
                taker.hear(lambda now: taker.node.moved(source, both, now, spoke=True))
                taker.hear(arrived)

        for sign in range(1, int(cost.seconds // SIGN) + 1):
            self._world.later(sign * SIGN, lambda: _sign_of_life(giver, source, taker, to))
        lane = into.down or out.up
        if lane is None:
            self._world.later(cost.seconds, here)
        else:
            self._world.later(max(0.0, cost.seconds - lane.seconds(cost.given)), lambda: lane.send(cost.given, here))
        return True


def _sign_of_life(giver: SimulatedNode, source: Address, taker: SimulatedNode, to: Address) -> None:
    """Pieces of a long transfer come and are asked for: both nodes hear of each other."""
    giver.hear(lambda now: giver.node.moved(to, 0, now, spoke=True))
    taker.hear(lambda now: taker.node.moved(source, 0, now, spoke=True))
