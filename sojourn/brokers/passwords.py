"""Passwords for a broker: random ones, and the file in which mosquitto keeps their hashes."""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import TYPE_CHECKING

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDS = 1000
"""Few: a password of 24 random bytes is not guessed, however fast one guesses."""
_BYTES = 24


def new_password() -> str:
    """A password that nobody has to remember."""
    return secrets.token_urlsafe(_BYTES)


def hashed(password: str) -> str:
    """As `mosquitto_passwd` writes it (PBKDF2, SHA-512), but without showing the password on a command line."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS)
    return f"$7${_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def password_file(users: Mapping[str, str]) -> str:
    """The text of a password file with these passwords."""
    for user, password in users.items():
        if not user or ":" in user or "\n" in user + password:
            raise ConfigError(f"the user {user!r} or its password holds a character that a password file cannot hold")
    return lines({user: hashed(password) for user, password in users.items()})


def lines(hashes: Mapping[str, str]) -> str:
    """The text of a password file with these hashes."""
    return "".join(f"{user}:{text}\n" for user, text in hashes.items())


def read_lines(text: str) -> dict[str, str]:
    """The hashes in the text of a password file, by user."""
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {user: hashed for user, _, hashed in pairs}
