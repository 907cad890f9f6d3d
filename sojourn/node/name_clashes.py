"""Finds names that two running nodes use: the broker lets each push the other off, so their starts take turns.

A node that restarts has a new epoch and never its old one again. Two nodes of one name have two epochs, and each comes
back after the other. What a broker kept of an earlier start comes when our own link to it is up again; so nothing is
compared across that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from sojourn.protocol.topics import Address, Role
    from sojourn.protocol.wire import Epoch

RETURNS = 2
"""How often an earlier start must come back within `CLASH_SECONDS`: A, B, A, B."""
CLASH_SECONDS = 600.0
"""Two clients that push each other off try again within 30 s; after this time without that, the clash is over."""
STARTS = 4
"""Starts of one name that are compared."""


_PROGRAMS: dict[Role, str] = {"device": "agents", "edge": "edge servers", "cloud": "coordinators"}


def clash_warning(node: Address) -> str:
    """What is wrong where two running nodes use one name, and what to do."""
    return (
        f"two {_PROGRAMS[node.role]} use the name {node.name!r}: the broker disconnects one whenever the other "
        "connects, and work of both is lost. Stop one of them, or give it another name (and its own certificate, in a "
        "fleet with certificates)"
    )


class _Trail:
    """The starts of one name in the order in which they came, without repetitions; and when one came back."""

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
    """The names whose starts are compared: those with more than one start, or with none at the moment."""

    def __init__(self) -> None:
        self._trails: dict[Address, _Trail] = {}

    def linked(self, roles: Collection[Role]) -> None:
        """Our link to these nodes is up again: what comes first may be old."""
        self._trails = {node: trail for node, trail in self._trails.items() if node.role not in roles}

    def left(self, node: Address, epoch: Epoch, now: float) -> None:
        """This start of a node has ended."""
        self._trails.setdefault(node, _Trail(epoch)).add(epoch, now)

    def born(self, node: Address, before: Epoch | None, epoch: Epoch, now: float) -> bool:
        """A node was born, and `before` was here until now; returns whether two nodes use its name."""
        trail = self._trails.get(node)
        if trail is None:
            if before is None or before == epoch:
                return False
            trail = self._trails[node] = _Trail(before)
        trail.add(epoch, now)
        return trail.clashes(now)

    def forget(self, node: Address) -> None:
        """A node was removed from the fleet."""
        self._trails.pop(node, None)
