"""A token: one line that a person copies to a device, with which the device finds its fleet and may ask to join it.

It holds where the door is, the fingerprint of the authority that vouches for the door, and a secret of the invitation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
import zlib
from typing import Annotated

import msgspec

from sojourn.errors import ConfigError
from sojourn.links.settings import Port

PREFIX = "sojourn-join-1."
"""The number rises if what follows is to be read otherwise."""
FINGERPRINT_BYTES = 16
"""Of SHA-256: nobody finds another authority with the same ones."""
_SECRET_BYTES = 16
_CHECK_BYTES = 4
_LONGEST = 1000


class Token(msgspec.Struct, frozen=True, array_like=True):
    """Where the door is, who vouches for it, and what lets the holder in."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    port: Port
    authority: Annotated[bytes, msgspec.Meta(min_length=FINGERPRINT_BYTES, max_length=FINGERPRINT_BYTES)]
    secret: Annotated[bytes, msgspec.Meta(min_length=_SECRET_BYTES, max_length=_SECRET_BYTES)]

    def __repr__(self) -> str:
        return f"Token(host={self.host!r}, port={self.port})"

    @property
    def text(self) -> str:
        """The line to copy."""
        body = msgspec.msgpack.encode(self)
        check = zlib.crc32(body).to_bytes(_CHECK_BYTES)
        return PREFIX + base64.urlsafe_b64encode(body + check).decode().rstrip("=")


def new_secret() -> bytes:
    """A secret that nobody guesses."""
    return secrets.token_bytes(_SECRET_BYTES)


def invitation_id(secret: bytes) -> str:
    """How an invitation is known where its secret is not kept."""
    return hashlib.sha256(b"sojourn-invitation" + secret).hexdigest()[:32]


def read_token(text: str) -> Token:
    """The token in a line; ConfigError says what is wrong with it."""
    text = text.strip()
    if not text.startswith(PREFIX) or len(text) > _LONGEST:
        raise ConfigError(f"this is no token: one begins with {PREFIX!r}, as `sojourn fleet invite` prints it")
    body = text.removeprefix(PREFIX)
    try:
        data = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
        if zlib.crc32(data[:-_CHECK_BYTES]).to_bytes(_CHECK_BYTES) != data[-_CHECK_BYTES:]:
            raise ConfigError("the token is not whole: copy all of its line, or paste it from a file")
        return msgspec.msgpack.decode(data[:-_CHECK_BYTES], type=Token)
    except (binascii.Error, ValueError) as error:
        raise ConfigError("the token is not whole: copy all of its line, or paste it from a file") from error
