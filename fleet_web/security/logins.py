"""The login file with scrypt password hashes, and the sessions of logged-in users."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from pathlib import Path

from sojourn.errors import ConfigError
from sojourn.protocol import topics
from sojourn.store.files import write_atomically

_N, _R, _P = 1 << 14, 8, 1
"""The cost of scrypt: 16 MB and about 50 ms per guess."""
MIN_LENGTH, MAX_LENGTH = 10, 500
"""Minimum and maximum number of characters of a password."""
READABLE_BY_OTHERS = 0o077


def hashed(password: str) -> str:
    """Return the hash part of a line."""
    salt = secrets.token_bytes(16)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(_scrypt(password, salt)).decode()}"


def matches(password: str, text: str) -> bool:
    """Return whether the password matches the hash; an invalid hash matches nothing."""
    kind, _, rest = text.partition("$")
    salt, _, digest = rest.partition("$")
    try:
        wanted, known = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except (binascii.Error, ValueError):
        return False
    return kind == "scrypt" and len(known) == 64 and hmac.compare_digest(_scrypt(password, wanted), known)


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=_N, r=_R, p=_P, dklen=64)


def read_logins(file: Path) -> dict[str, str]:
    """Read the file and return its hashes by name."""
    try:
        text, mode = file.read_text(encoding="utf-8"), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--login-file {file}: {error}") from error
    if mode & READABLE_BY_OTHERS:
        raise ConfigError(f"--login-file {file}: readable by other users; run chmod 600 {file}")
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: rest for name, _, rest in pairs}


class Logins:
    """The users who may log in. The file is read again for each attempt, so removed users can no longer log in."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._untrusted = hashed(secrets.token_hex(16))
        if not read_logins(file):
            raise ConfigError(f"--login-file {file}: contains no users; add one: sojourn web --add-login NAME")

    def right(self, name: str, password: str) -> bool:
        """Return whether name and password are correct; unknown names take the same time."""
        known = read_logins(self._file).get(name)
        return matches(password[:MAX_LENGTH], known or self._untrusted) and known is not None


def add_login(file: Path, name: str, password: str) -> None:
    """Add a user to the file, or replace the user's password."""
    topics.check_name(name, "login")
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        raise ConfigError(f"a password must have {MIN_LENGTH} to {MAX_LENGTH} characters")
    known = read_logins(file) if file.exists() else {}
    lines = "".join(f"{who}:{text}\n" for who, text in {**known, name: hashed(password)}.items())
    write_atomically(file, lines.encode(), mode=0o600)


AGE = 12 * 3600.0
"""Maximum age of a session in seconds."""
IDLE = 2 * 3600.0
"""Seconds without a request after which a session ends."""
MAX_SESSIONS = 1000
"""Maximum number of sessions; the oldest ends first."""


class Sessions:
    """The active sessions; `now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[str, float, float]] = {}

    def begin(self, who: str, now: float) -> str:
        """Start a session; return the value of its cookie."""
        token = secrets.token_urlsafe(32)
        self._open[_hash(token)] = who, now, now
        while len(self._open) > MAX_SESSIONS:
            del self._open[next(iter(self._open))]
        return token

    def who(self, token: str, now: float) -> str | None:
        """Return the user of an active session and renew it; None if there is no such session."""
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
        """End a session."""
        self._open.pop(_hash(token), None)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
