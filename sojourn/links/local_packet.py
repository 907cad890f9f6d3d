"""Packets that stay in their process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Epoch


@dataclass(slots=True, eq=False)
class LocalPacket:
    """A message as it is, from whom and of which boot; `size` is how many bytes it would be on the wire.

    blobs: what rides along, by digest; on the wire it would be inside of the message's references.
    """

    sender: Address
    epoch: Epoch
    message: Message
    size: int
    blobs: Mapping[bytes, bytes]
