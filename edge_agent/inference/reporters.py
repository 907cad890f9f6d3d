"""Who may report errors, and how many count: what programs say can bring a release back, so it is bounded."""

from __future__ import annotations

import hmac
from collections import Counter
from pathlib import Path

from sojourn.errors import ConfigError

SHORTEST = 16
"""Characters of a token: shorter ones can be guessed."""
_LARGEST = 4096
WINDOW = 60.0
OF_ONE_PROGRAM, OF_ONE_USER = 10, 30
"""Errors that count in a window, however many are reported."""
_MOST_PROGRAMS = 256
"""Programs that are told apart in a window; the errors of further ones do not count before the next."""


class ErrorToken:
    """The word that a program shows the endpoint to report errors; empty where nobody may."""

    def __init__(self, token: str = "") -> None:
        self._token = token

    @classmethod
    def read(cls, file: str | None) -> ErrorToken:
        """The word in a file; a file that everybody can read protects nothing."""
        if file is None:
            return cls()
        path = Path(file).expanduser()
        try:
            mode, text = path.stat().st_mode, path.read_bytes()[:_LARGEST].decode().strip()
        except OSError as error:
            raise ConfigError(f"the error token {path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ConfigError(f"the error token {path} is not text") from None
        if mode & 0o007:
            raise ConfigError(f"the error token {path} is open to every user: chmod o= {path}")
        if len(text) < SHORTEST:
            raise ConfigError(f"the error token {path} has {len(text)} characters: at least {SHORTEST} are needed")
        return cls(text)

    def __bool__(self) -> bool:
        return bool(self._token)

    def shown_in(self, header: str | None) -> bool:
        """Whether a header `Authorization: Bearer WORD` shows it."""
        kind, _, word = (header or "").strip().partition(" ")
        shown = word.strip().encode(errors="replace")
        return bool(self) and kind.lower() == "bearer" and hmac.compare_digest(shown, self._token.encode())


class ErrorCount:
    """How many of the errors that programs report count: a few of each program, and not many more of each user."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._programs: Counter[tuple[int, int]] = Counter()
        self._users: Counter[int] = Counter()

    def counted(self, user: int, program: int, errors: int, now: float) -> int:
        """How many of these errors of a program count."""
        if now >= self._until:
            self._until = now + WINDOW
            self._programs.clear()
            self._users.clear()
        key = (user, program)
        if key not in self._programs and len(self._programs) >= _MOST_PROGRAMS:
            return 0
        counted = max(0, min(errors, OF_ONE_PROGRAM - self._programs[key], OF_ONE_USER - self._users[user]))
        if counted:  # who does not count takes no place either
            self._programs[key] += counted
            self._users[user] += counted
        return counted
