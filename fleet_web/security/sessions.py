"""Who is logged in: random tokens in cookies, of which only hashes are kept, in memory."""

from __future__ import annotations

import hashlib
import secrets

AGE = 12 * 3600.0
"""Seconds that somebody stays logged in."""
IDLE = 2 * 3600.0
"""Seconds without a sign of them after which they are logged out."""
MOST = 1000
"""Sessions; the oldest ends first."""


class Sessions:
    """Those that are logged in. `now` is in seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[str, float, float]] = {}

    def begin(self, who: str, now: float) -> str:
        """A new session; returns what its cookie holds."""
        token = secrets.token_urlsafe(32)
        self._open[_hash(token)] = who, now, now
        while len(self._open) > MOST:
            del self._open[next(iter(self._open))]
        return token

    def who(self, token: str, now: float) -> str | None:
        """Whose session this is, if it is one that has not ended; that is a sign of them."""
        key = _hash(token)
        found = self._open.get(key)
        if found is None:
            return None
        name, began, seen = found
        if now - began > AGE or now - seen > IDLE:
            del self._open[key]
            return None
        self._open[key] = name, began, now
        return name

    def end(self, token: str) -> None:
        """They log out."""
        self._open.pop(_hash(token), None)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
