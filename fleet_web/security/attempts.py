"""How often somebody may try to log in: after a few wrong passwords each further one takes longer."""

from __future__ import annotations

FREE = 5
"""Wrong passwords from one address before it has to wait."""
LONGEST = 300.0
"""Seconds that it waits at most."""
FORGET = 900.0
"""Seconds after which the last wrong one is forgotten."""
ADDRESSES = 1000
"""At most so many are remembered; the oldest is forgotten first."""
EVERYWHERE = 30
"""Wrong passwords in a minute from all addresses together, after which everybody waits."""
MINUTE = 60.0


class Attempts:
    """Wrong passwords by address. `now` is in seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}
        self._recent: list[float] = []

    def wait(self, address: str, now: float) -> float:
        """For how many seconds this address may not try; 0 if it may."""
        self._recent = [at for at in self._recent if now - at < MINUTE]
        if len(self._recent) >= EVERYWHERE:
            return MINUTE - (now - self._recent[0])
        count, last = self._wrong.get(address, (0, now))
        if count < FREE or now - last > FORGET:
            return 0.0
        return max(0.0, last + min(LONGEST, 2.0 ** (count - FREE)) - now)

    def failed(self, address: str, now: float) -> int:
        """A wrong password; how many in a row those were."""
        count, last = self._wrong.pop(address, (0, now))
        count = 1 if now - last > FORGET else count + 1
        self._wrong[address] = count, now
        self._recent.append(now)
        while len(self._wrong) > ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        return count

    def succeeded(self, address: str) -> None:
        """The right password."""
        self._wrong.pop(address, None)
