"""Requests that are resent with back-off until they are settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.machine import Send

if TYPE_CHECKING:
    from sojourn.messages import Message
    from sojourn.topics import Address

FIRST = 1.0
LONGEST = 15.0


@dataclass
class _Request:
    send: Send
    due: float
    pause: float


class Outbox:
    """What a node has asked and was not yet answered, by key. Volatile: a machine asks again when it starts."""

    def __init__(self) -> None:
        self._requests: dict[object, _Request] = {}

    def ask(self, key: object, to: Address, message: Message, now: float) -> list[Send]:
        """Ask now, and again later; a new request under the same key takes the place of the old."""
        self._requests[key] = _Request(Send(to, message), now + FIRST, FIRST)
        return [Send(to, message)]

    def settle(self, key: object) -> None:
        """The request was answered or is no longer of interest."""
        self._requests.pop(key, None)

    def open(self, key: object) -> bool:
        """Whether a request waits for its answer."""
        return key in self._requests

    def due(self, now: float) -> list[Send]:
        """What is to be sent again now."""
        sends = []
        for request in self._requests.values():
            if request.due <= now:
                request.pause = min(request.pause * 2, LONGEST)
                request.due = now + request.pause
                sends.append(request.send)
        return sends

    def hasten(self, now: float, to: Address | None = None) -> list[Send]:
        """A node came (back), or we did: ask at once for all that it, or everybody, owes."""
        for request in self._requests.values():
            if to is None or request.send.to == to:
                request.due, request.pause = now, FIRST / 2
        return self.due(now)

    def wake_at(self) -> float | None:
        """When the next request is due."""
        return min((request.due for request in self._requests.values()), default=None)
