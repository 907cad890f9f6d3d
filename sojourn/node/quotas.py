"""How much of a node a single peer may take: messages, transfers, bytes on the disk, other nodes that it names.

Whoever asks for more is not heard for the rest: honest nodes stay far below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sojourn.protocol.topics import Role

MEMBERS = 10_000
"""Nodes of one role whose presence is kept in mind; more than that is no site."""
SENDERS = 1000
"""Senders of dropped messages that are counted one by one."""


class Quota(NamedTuple):
    """What one peer may have under way at a time.

    pulls: blobs that are fetched from it. pulled: their bytes. inlined: bytes that rode along in its messages since the
    last sweep. messages: how many in a second, over some time; burst: how many at once.
    """

    pulls: int
    pulled: int
    inlined: int
    messages: float
    burst: float


QUOTAS: dict[Role, Quota] = {
    "device": Quota(64, 8 << 30, 64 << 20, 200.0, 2000.0),
    "edge": Quota(4096, 64 << 30, 1 << 30, 5000.0, 20_000.0),
    "cloud": Quota(4096, 64 << 30, 1 << 30, 5000.0, 20_000.0),
}
"""By the role of the peer: a site speaks for all its devices and tours."""
PEERS_TIMED = 20_000


class SpeakingRate:
    """How quickly each of many peers may speak: a bucket of tokens for each, filled by the clock."""

    def __init__(self) -> None:
        self._buckets: dict[Hashable, tuple[float, float]] = {}
        """The tokens that each had, and when."""

    def allows(self, who: Hashable, quota: Quota, now: float) -> bool:
        """Take one token; False when there is none."""
        tokens, at = self._buckets.pop(who, (quota.burst, now))
        tokens = min(quota.burst, tokens + max(0.0, now - at) * quota.messages)
        allowed = tokens >= 1
        self._buckets[who] = (tokens - 1 if allowed else tokens), now
        if len(self._buckets) > PEERS_TIMED:  # whoever was silent for longest has a full bucket again
            del self._buckets[next(iter(self._buckets))]
        return allowed
