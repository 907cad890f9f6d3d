"""The figures that every role has: its links, its traffic, and what waits for an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn import __version__
from sojourn.metrics.catalogue import BUILD, DROPPED, LINK_UP, NETWORK_BYTES, OUTBOX

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.metrics.reading import Reading
    from sojourn.node.driver import Driver

_ROLES = {"device": "agent", "edge": "edge", "cloud": "coordinator"}


class NodeFigures:
    """What a driver and its node know; `unanswered` says how many requests wait."""

    def __init__(self, driver: Driver, unanswered: Callable[[], int]) -> None:
        self._driver = driver
        self._unanswered = unanswered

    def read(self, into: Reading, now: float) -> None:  # noqa: ARG002  # nothing here has a date
        """Put what is known now."""
        node = self._driver.node
        into.put(BUILD, 1, __version__, _ROLES[node.address.role], node.address.name)
        for peer, up in self._driver.connected.items():
            into.put(LINK_UP, float(up), peer)
        into.put(NETWORK_BYTES, node.received, "received")
        into.put(NETWORK_BYTES, node.sent, "sent")
        into.put(DROPPED, sum(node.dropped.values()))
        into.put(OUTBOX, self._unanswered())
