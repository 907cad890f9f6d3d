"""Requests that are resent with back-off until they are answered."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sojourn.node.machine import Send

if TYPE_CHECKING:
    from sojourn.protocol.messages import Message
    from sojourn.protocol.topics import Address

FIRST = 1.0
LONGEST = 15.0


@dataclass(slots=True)
class _Request:
    number: int
    send: Send
    due: float
    pause: float


class Outbox:
    """What a node has asked and was not yet answered, by key. Volatile: a machine asks again when it starts."""

    def __init__(self) -> None:
        self._requests: dict[object, _Request] = {}
        self._heap: list[tuple[float, int, object]] = []
        """When each request is due, and times that no longer hold: those are passed over when they come up."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._requests)

    def ask(self, key: object, to: Address, message: Message, now: float) -> list[Send]:
        """Ask now, and again later; a new request under the same key takes the place of the old."""
        self._count += 1
        old = self._requests.get(key)
        request = _Request(old.number if old else self._count, Send(to, message), now + FIRST, FIRST)
        self._requests[key] = request
        self._plan(key, request)
        return [request.send]

    def answered(self, key: object) -> None:
        """The request was answered or is no longer of interest."""
        self._requests.pop(key, None)

    def open(self, key: object) -> bool:
        """Whether a request waits for its answer."""
        return key in self._requests

    def due(self, now: float) -> list[Send]:
        """What is to be sent again now, in the order in which it was first asked."""
        found = []
        while (when := self.wake_at()) is not None and when <= now:
            _, _, key = heapq.heappop(self._heap)
            request = self._requests[key]
            request.pause = min(request.pause * 2, LONGEST)
            request.due = now + request.pause
            self._plan(key, request)
            found.append(request)
        return [request.send for request in sorted(found, key=lambda request: request.number)]

    def hasten(self, now: float, to: Address | None = None) -> list[Send]:
        """A node came (back), or we did: ask at once for all that it, or everybody, owes."""
        for key, request in self._requests.items():
            if to is None or request.send.to == to:
                request.due, request.pause = now, FIRST / 2
                self._plan(key, request)
        return self.due(now)

    def wake_at(self) -> float | None:
        """When the next request is due."""
        while self._heap:
            when, number, key = self._heap[0]
            request = self._requests.get(key)
            if request is not None and request.due == when and request.number == number:
                return when
            heapq.heappop(self._heap)
        return None

    def _plan(self, key: object, request: _Request) -> None:
        heapq.heappush(self._heap, (request.due, request.number, key))
