"""The pending work of a role: requests that are resent until answered, fetches of blobs, and timers by key."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sojourn.node.machine import Send
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address

FIRST_RESEND = 1.0
LONGEST_RESEND = 15.0


@dataclass(slots=True)
class _Request:
    number: int
    send: Send
    pause: float = FIRST_RESEND


class Outbox:
    """The unanswered requests of a node, by key. Volatile: a machine asks again when it starts."""

    def __init__(self) -> None:
        self._requests: dict[object, _Request] = {}
        self._timers: TimerHeap[object] = TimerHeap()
        self._count = 0

    def __len__(self) -> int:
        return len(self._requests)

    def ask(self, key: object, to: Address, message: Message, now: float) -> list[Send]:
        """Send a request now, and again later; a new request under the same key replaces the old one."""
        self._count += 1
        old = self._requests.get(key)
        request = self._requests[key] = _Request(old.number if old else self._count, Send(to, message))
        self._timers.forget(key)
        self._timers.set(key, now + FIRST_RESEND)
        return [request.send]

    def answered(self, key: object) -> None:
        """Drop a request that was answered or is no longer needed."""
        self._requests.pop(key, None)
        self._timers.forget(key)

    def open(self, key: object) -> bool:
        """Return whether a request waits for its answer."""
        return key in self._requests

    def due(self, now: float) -> list[Send]:
        """Return the requests to resend now, in the order in which they were first sent."""
        found = []
        for key in self._timers.due(now):
            request = self._requests[key]
            request.pause = min(request.pause * 2, LONGEST_RESEND)
            self._timers.set(key, now + request.pause)
            found.append(request)
        return [request.send for request in sorted(found, key=lambda request: request.number)]

    def resend_now(self, now: float, to: Address | None = None) -> list[Send]:
        """Resend all requests to one node, or to all nodes, at once after a reconnect."""
        for key, request in self._requests.items():
            if to is None or request.send.to == to:
                request.pause = FIRST_RESEND / 2
                self._timers.set(key, now)
        return self.due(now)

    def wake_at(self) -> float | None:
        """Return when the next request is due."""
        return self._timers.wake_at()


Owner = TypeVar("Owner")


class Fetches(Generic[Owner]):
    """Running fetches and the keys that wait for them: by blob, so that an arrival finds its waiting keys."""

    def __init__(self) -> None:
        self._lacking: dict[Owner, set[bytes]] = {}
        self._waiting: dict[bytes, dict[Owner, None]] = {}

    def wait(self, owner: Owner, digests: Iterable[bytes]) -> None:
        """Let a key wait for these blobs, and no longer for others."""
        self.forget(owner)
        self._lacking[owner] = set(digests)
        for digest in self._lacking[owner]:
            self._waiting.setdefault(digest, {})[owner] = None

    def arrived(self, digest: bytes) -> list[Owner]:
        """Take an arrived blob; return the keys whose blobs are complete, in the order in which they began to wait."""
        complete = []
        for owner in self._waiting.pop(digest, {}):
            self._lacking[owner].discard(digest)
            if not self._lacking[owner]:
                del self._lacking[owner]
                complete.append(owner)
        return complete

    def waiting(self, digest: bytes) -> list[Owner]:
        """Return the keys that wait for this blob."""
        return list(self._waiting.get(digest, ()))

    def forget(self, owner: Owner) -> None:
        """Drop a key and all that it waits for."""
        for digest in self._lacking.pop(owner, ()):
            del self._waiting[digest][owner]
            if not self._waiting[digest]:
                del self._waiting[digest]


class TimerHeap(Generic[Owner]):
    """Timers by key in a heap. A timer may fire early: its owner checks the clock and sets it again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Owner]] = []
        self._set: dict[Owner, float] = {}
        self._count = 0

    def set(self, owner: Owner, when: float) -> None:
        """Set a timer; an earlier one of this key is kept."""
        if owner not in self._set or self._set[owner] > when:
            self._set[owner] = when
            self._count += 1
            heapq.heappush(self._heap, (when, self._count, owner))

    def forget(self, owner: Owner) -> None:
        """Drop the timer of this key."""
        self._set.pop(owner, None)

    def due(self, now: float) -> list[Owner]:
        """Return and drop the keys whose time has come."""
        found = []
        while (when := self.wake_at()) is not None and when <= now:
            owner = heapq.heappop(self._heap)[2]
            del self._set[owner]
            found.append(owner)
        return found

    def wake_at(self) -> float | None:
        """Return the earliest time, if any is set."""
        while self._heap and self._set.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
