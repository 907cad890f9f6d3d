"""Limits login attempts: after a few wrong passwords, each further attempt has to wait longer."""

from __future__ import annotations

from sojourn.rate_limiter import Rate, RateLimiter

FREE_ATTEMPTS = 5
"""Number of wrong passwords from one address before it has to wait."""
MAX_WAIT = 300.0
"""Maximum waiting time in seconds."""
FORGET_AFTER = 900.0
"""Seconds after which the last wrong password is forgotten."""
MAX_ADDRESSES = 1000
"""Maximum number of remembered addresses; the oldest is dropped first."""
GLOBAL_LIMIT = Rate(0.5, 30.0)
"""Number of wrong passwords from all addresses together after which every address has to wait."""


class Attempts:
    """Wrong passwords by address; `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}
        self._rate_limiter = RateLimiter()

    def wait(self, address: str, now: float) -> float:
        """Return for how many seconds this address has to wait; 0 if it may try."""
        together = self._rate_limiter.wait("all", GLOBAL_LIMIT, now)
        count, last = self._wrong.get(address, (0, now))
        if count < FREE_ATTEMPTS or now - last > FORGET_AFTER:
            return together
        return max(together, last + min(MAX_WAIT, 2.0 ** (count - FREE_ATTEMPTS)) - now)

    def failed(self, address: str, now: float) -> int:
        """Record a wrong password; return how many there were in a row."""
        count, last = self._wrong.pop(address, (0, now))
        count = 1 if now - last > FORGET_AFTER else count + 1
        self._wrong[address] = count, now
        self._rate_limiter.allows("all", GLOBAL_LIMIT, now)
        while len(self._wrong) > MAX_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        return count

    def succeeded(self, address: str) -> None:
        """Record a correct password."""
        self._wrong.pop(address, None)
