"""The rate limiter of every role: a token bucket for each key; the caller passes the time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

MAX_KEYS = 20_000


class Rate(NamedTuple):
    """How often something may happen."""

    per_second: float
    """The long-term rate."""
    burst: float
    """The number allowed at once, after a long pause."""


class RateLimiter:
    """A token bucket for each of at most `max_keys` keys; the least recently used key is dropped first."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._buckets: dict[Hashable, tuple[float, float]] = {}
        """The tokens in each bucket, and the time at which they were counted."""

    def allows(self, key: Hashable, rate: Rate, now: float) -> bool:
        """Take one token; return False if there is none."""
        tokens = self._tokens(key, rate, now)
        allowed = tokens >= 1
        self._buckets.pop(key, None)
        self._buckets[key] = (tokens - 1 if allowed else tokens), now
        if len(self._buckets) > self._max_keys:  # the oldest bucket is the likeliest to be full again
            del self._buckets[next(iter(self._buckets))]
        return allowed

    def wait(self, key: Hashable, rate: Rate, now: float) -> float:
        """Return the seconds until there is a token, 0 if there is one now, without taking one."""
        return max(0.0, (1 - self._tokens(key, rate, now)) / rate.per_second)

    def _tokens(self, key: Hashable, rate: Rate, now: float) -> float:
        tokens, at = self._buckets.get(key, (rate.burst, now))
        return min(rate.burst, tokens + max(0.0, now - at) * rate.per_second)
