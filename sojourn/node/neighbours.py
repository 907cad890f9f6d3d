"""Nodes of one process: what they send each other is handed over, where between machines it is packed and carried.

The machines see no difference. What the way would have cost, in bytes and in time, is worked out instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.links.link import Link
    from sojourn.links.local_packet import LocalPacket
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Ref


class Neighbours(Protocol):
    """All nodes of a process, where nothing that is sent can be lost."""

    def send(self, link: Link, to: Address, packet: LocalPacket) -> None:
        """Send a packet as it is, over this link of its sender."""

    def hand_over(self, ref: Ref, source: Address, to: Address, arrived: Callable[[float], None]) -> bool:
        """Have `to` get a blob that `source` holds; `arrived` is called when it would have been there, with the time.

        False if the source is gone, has no such blob, or did not offer it: then it is asked for, as ever.
        """
