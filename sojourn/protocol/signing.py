"""Ed25519 keys: who holds the private one may give orders to a fleet; with the public one anybody can tell.

One kind of key signs all: orders of releases, mandates, and what an operator asks of a coordinator. What stands before
the signed bytes (a context) keeps a signature for one of these from being one for another.
"""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Buffer

CONTEXT = b"sojourn-order-1"
"""Stands before the bytes of an order of a release."""
PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64


class Signer:
    """A private key that signs."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls, path: Path | str) -> Self:
        """A new key in a new file that only its owner can read; a file that is there is never written over."""
        path = Path(path)
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} exists: a signing key is not replaced; move it away, or use it") from None
        except OSError as error:
            raise ConfigError(f"the signing key {path} cannot be written: {error.strerror}") from error
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return cls(key)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The key in a PEM file."""
        try:
            text = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(f"the signing key {path} cannot be read: {error.strerror}") from error
        try:
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{path} does not hold a private key in PEM that needs no password") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{path} holds a private key of another kind: an Ed25519 key is needed")
        return cls(key)

    @property
    def public(self) -> str:
        """The public key as it stands in messages and TOML files: base64 of its 32 bytes."""
        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return base64.b64encode(raw).decode()

    def sign(self, data: Buffer, context: bytes = CONTEXT) -> bytes:
        """The signature of these bytes in a context: an order's, unless told."""
        return self._key.sign(context + bytes(data))


def verify(public: str, data: Buffer, signature: Buffer, context: bytes = CONTEXT) -> bool:
    """Whether the holder of the private key signed these bytes in this context."""
    try:
        _key(public).verify(bytes(signature), context + bytes(data))
    except InvalidSignature:
        return False
    return True


def check_public(public: str, where: str) -> str:
    """The public key, if it is one; `where` names the place it came from."""
    try:
        _key(public)
    except ConfigError:
        raise ConfigError(f"{where}: {public[:60]!r} is not the base64 of a public key of 32 bytes") from None
    return public


def read_public(path: Path | str) -> str:
    """The public key in a file."""
    try:
        text = Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the release key {path} cannot be read: {why}") from error
    return check_public(text, str(path))


def read_publics(path: Path | str) -> dict[str, str]:
    """The public keys in a file, by key, with the name that follows each in its line; `#` begins a remark."""
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the operators' keys {path} cannot be read: {why}") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split(maxsplit=1)
        if words:
            key = check_public(words[0], f"{path}, line {number}")
            keys[key] = words[1].strip()[:200] if len(words) > 1 else f"key {key[:8]}"
    if not keys:
        raise ConfigError(f"{path} holds no key: it has one in each line, in base64, and then whose it is")
    return keys


def _key(public: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"{public[:60]!r} is not the base64 of a public key of 32 bytes") from error
