"""Protects a node from its peers: a quota for each, and detection of names that two running nodes share."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch
from sojourn.rate_limiter import Rate

# How much of a node a single peer may use: messages, transfers, bytes on the disk, other nodes that it names.
#
# A node drops what exceeds the quota: honest peers stay far below.

MAX_DEVICES_PER_SITE = 10_000
"""Nodes of one role whose presence is tracked; no site has more."""
SENDERS = 1000
"""Senders of dropped messages that are counted separately."""


class Quota(NamedTuple):
    """The limits of one peer at a time.

    pulls: blobs that are fetched from it. pulled: their bytes. inlined: bytes of blobs inside its messages since the
    last sweep. messages: the rate of its messages.
    """

    pulls: int
    pulled: int
    inlined: int
    messages: Rate


QUOTAS: dict[Role, Quota] = {
    "device": Quota(64, 8 << 30, 64 << 20, Rate(200.0, 2000.0)),
    "edge": Quota(4096, 64 << 30, 1 << 30, Rate(5000.0, 20_000.0)),
    "cloud": Quota(4096, 64 << 30, 1 << 30, Rate(5000.0, 20_000.0)),
}
"""By the role of the peer: a site speaks for all its devices and tours."""


# Detects names that two running nodes use: the broker disconnects each for the other, so their starts alternate.
#
# A node that restarts has a new epoch and never its old one again. Two nodes of one name have two epochs, and each
# returns after the other. After our own reconnect the broker sends retained presence of earlier starts, so nothing is
# compared across a reconnect.

RETURNS = 2
"""How often an earlier start must return within `CLASH_SECONDS`: A, B, A, B."""
CLASH_SECONDS = 600.0
"""Two clients that disconnect each other retry within 30 s; after this time without a return, the clash is over."""
STARTS = 4
"""Starts of one name that are compared."""


_PROGRAMS: dict[Role, str] = {"device": "agents", "edge": "edge servers", "cloud": "coordinators"}


def clash_warning(node: Address) -> str:
    """Return the warning about two running nodes with one name, and the remedy."""
    return (
        f"two {_PROGRAMS[node.role]} use the name {node.name!r}: the broker disconnects one whenever the other "
        "connects, and both lose work. Stop one of them, or give it another name (and its own certificate, in a "
        "fleet with certificates)"
    )


class _Trail:
    """The starts of one name in order of arrival, without repetitions; and when an earlier one returned."""

    def __init__(self, epoch: Epoch) -> None:
        self.epochs = [epoch]
        self.returns: list[float] = []

    def add(self, epoch: Epoch, now: float) -> None:
        if epoch == self.epochs[-1]:
            return
        if epoch in self.epochs:
            self.returns = [*self.returns, now][-RETURNS:]
        self.epochs = [*self.epochs, epoch][-STARTS:]

    def clashes(self, now: float) -> bool:
        return len(self.returns) == RETURNS and self.returns[0] >= now - CLASH_SECONDS


class NameClashes:
    """The names whose starts are compared: those with more than one start, or without a running node."""

    def __init__(self) -> None:
        self._trails: dict[Address, _Trail] = {}

    def linked(self, roles: Collection[Role]) -> None:
        """Forget the starts of these roles after a reconnect: the first presence may be old."""
        self._trails = {node: trail for node, trail in self._trails.items() if node.role not in roles}

    def left(self, node: Address, epoch: Epoch, now: float) -> None:
        """Note that this start of a node has ended."""
        self._trails.setdefault(node, _Trail(epoch)).add(epoch, now)

    def born(self, node: Address, before: Epoch | None, epoch: Epoch, now: float) -> bool:
        """Note a birth after the start `before`; return whether two nodes use the name."""
        trail = self._trails.get(node)
        if trail is None:
            if before is None or before == epoch:
                return False
            trail = self._trails[node] = _Trail(before)
        trail.add(epoch, now)
        return trail.clashes(now)

    def forget(self, node: Address) -> None:
        """Forget a node that was removed from the fleet."""
        self._trails.pop(node, None)
