"""What must not be lost of a node that is put away while it waits for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sojourn.protocol.topics import Address
    from sojourn.protocol.wire import Epoch


class NodeAtRest(NamedTuple):
    """A node between two pieces of work: the same start of it goes on later, as if it had been there all the time."""

    epoch: Epoch
    number: int
    """Of the last packet that it sent."""
    next_sweep: float
    snapshot: bytes = b""
    """Its machine's durable state; empty for one that never had any."""
    sent_inline: dict[tuple[Address, bytes], None] | None = None
