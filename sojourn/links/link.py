"""What a node needs of a broker. MQTT (`sojourn.links.mqtt`) and memory (`sojourn.links.memory`) both give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

PORTABLE_PAYLOAD = 60_000
"""A payload that every broker we know takes."""


class Will(msgspec.Struct, frozen=True):
    """What the broker publishes, retained, when a node vanishes."""

    topic: str
    payload: bytes


class Listener(Protocol):
    """Who hears a link. Called on any thread: an implementation only puts things on a queue."""

    def link_up(self, link: Link) -> None:
        """The link is connected and subscribed: what must be said on every connect can be said now."""

    def link_down(self, link: Link, reason: str) -> None:
        """The link was lost; it reconnects by itself."""

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        """A message arrived on a topic that is subscribed to."""


class Link(Protocol):
    """One connection to one broker. At-least-once, unordered, lossy as far as its users are concerned."""

    @property
    def payload_limit(self) -> int:
        """The largest payload this broker takes from us; known for sure once the link is up."""

    def open(self, listener: Listener, filters: Sequence[str], will: Will | None) -> None:
        """Connect in the background, subscribe to the filters on every connect, and go on trying for ever."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send, or drop when the link is down: whoever needs an answer asks again."""

    def close(self) -> None:
        """Disconnect in good order (the will is not published)."""
