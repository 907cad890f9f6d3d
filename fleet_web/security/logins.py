"""The file of those who may log in: a name and the scrypt hash of a password in each line."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from sojourn.errors import ConfigError
from sojourn.protocol import topics
from sojourn.store.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

_N, _R, _P = 1 << 14, 8, 1
"""What scrypt costs: 16 MB and about 50 ms for each guess."""
SHORTEST, LONGEST = 10, 500
"""Characters of a password."""
READABLE_BY_OTHERS = 0o077


def hashed(password: str) -> str:
    """A line's second half."""
    salt = secrets.token_bytes(16)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(_scrypt(password, salt)).decode()}"


def matches(password: str, text: str) -> bool:
    """Whether this is the password of that hash; nonsense in the file matches nothing."""
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
    """The hashes in a file by name."""
    try:
        text, mode = file.read_text(encoding="utf-8"), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--login-file {file}: {error}") from error
    if mode & READABLE_BY_OTHERS:
        raise ConfigError(f"--login-file {file}: others may read it; chmod 600 {file}")
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: rest for name, _, rest in pairs}


class Logins:
    """Who may log in. The file is read again for each attempt: who is taken out of it cannot log in any more."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._nobody = hashed(secrets.token_hex(16))
        if not read_logins(file):
            raise ConfigError(f"--login-file {file}: nobody is in it; add somebody: sojourn web --add-login NAME")

    def right(self, name: str, password: str) -> bool:
        """Whether they may come in; it takes as long for a name that is not there."""
        known = read_logins(self._file).get(name)
        return matches(password[:LONGEST], known or self._nobody) and known is not None


def add_login(file: Path, name: str, password: str) -> None:
    """Add somebody to the file, or give them another password."""
    topics.check_name(name, "login")
    if not SHORTEST <= len(password) <= LONGEST:
        raise ConfigError(f"a password has {SHORTEST} to {LONGEST} characters")
    known = read_logins(file) if file.exists() else {}
    lines = "".join(f"{who}:{text}\n" for who, text in {**known, name: hashed(password)}.items())
    write_atomically(file, lines.encode(), mode=0o600)
