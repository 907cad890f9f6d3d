"""The interface between a node and a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

PORTABLE_PAYLOAD = 60_000
"""A payload size that every known broker accepts."""


class Will(msgspec.Struct, frozen=True):
    """The retained message that the broker publishes when a node vanishes."""

    topic: str
    payload: bytes


class Listener(Protocol):
    """The receiver of a link's events. Called on any thread: an implementation only puts items on a queue."""

    def link_up(self, link: Link) -> None:
        """The link is connected and subscribed: messages for every connect can be sent now."""

    def link_down(self, link: Link, reason: str) -> None:
        """The link was lost; it reconnects automatically."""

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """A message arrived on a topic that is subscribed to."""


class Link(Protocol):
    """One connection to one broker. Its users must treat it as at-least-once, unordered and lossy."""

    @property
    def payload_limit(self) -> int:
        """The largest payload that this broker accepts; final once the link is up."""

    def open(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Connect in the background, subscribe to the filters on every connect, and retry forever."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, or drop if the link is down: a sender that needs a reply asks again."""

    def close(self) -> None:
        """Disconnect cleanly (the will is not published)."""
