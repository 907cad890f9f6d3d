"""A simulated device's link, with a count of the bytes that went over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.links.memory import MemoryLink
from sojourn.links.settings import OWN_BROKER_PAYLOAD

if TYPE_CHECKING:
    from sojourn.links.memory import MemoryBroker
    from sojourn.profile import LinkProfile


class CountedLink(MemoryLink):
    """Counts payloads down and up, as the device's provider would."""

    def __init__(self, broker: MemoryBroker, profile: LinkProfile | None = None) -> None:
        super().__init__(broker, OWN_BROKER_PAYLOAD, profile)
        self._came = self._went = 0

    def carry(self, topic: str, payload: bytes) -> None:
        """The broker sends a message to us."""
        self._came += len(payload)
        super().carry(topic, payload)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, unless closed."""
        self._went += len(payload)
        super().publish(topic, payload, retain=retain)

    def moved(self, sent: int, came: int) -> None:
        """Count what would have gone over the link."""
        self._went += sent
        self._came += came

    def taken(self) -> tuple[int, int]:
        """Bytes down and up since this was last asked."""
        came, went = self._came, self._went
        self._came = self._went = 0
        return came, went
