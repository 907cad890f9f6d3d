"""Handing withdrawals of mandates on: to every device that is here, and to those that come later.

Volatile: after a restart of the site the coordinator sends again what still matters. Devices verify what they are told;
nothing here does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.node.machine import Send
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.node.machine import Effect
    from sojourn.protocol.mandate_messages import Recall

KEPT = 64
"""At most so many withdrawals are handed to devices that come later; the oldest goes first."""


class Recalls:
    """The withdrawals that this site knows of."""

    def __init__(self) -> None:
        self._known: dict[bytes, Recall] = {}
        """By the bytes that were signed."""

    def take(self, message: Recall, present: Iterable[str]) -> list[Effect]:
        """The coordinator tells of one: all devices hear it."""
        key = message.withdrawal.withdrawal
        self._known.pop(key, None)
        self._known[key] = message
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return [Send(Address("device", name), message) for name in present]

    def told(self, device: str) -> list[Effect]:
        """A device has come: it hears all."""
        return [Send(Address("device", device), message) for message in self._known.values()]
