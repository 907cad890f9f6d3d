"""Ed25519 keys of operators and of nodes, and the statement that a device signs about a visit."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sojourn.errors import ConfigError
from sojourn.protocol.limits import Digest, Name, Samples, Steps
from sojourn.protocol.wire import Digests, HopSignature, Ref, Task, VisitId

if TYPE_CHECKING:
    from typing_extensions import Buffer


# The holder of a private Ed25519 key can sign orders to a fleet; the public key verifies them.
#
# The same kind of key signs orders of releases, mandates, and operators' requests. A context before the signed bytes
# prevents a signature for one of these from being used for another.

CONTEXT = b"sojourn-order-1"
"""The context of an order of a release."""


class Signer:
    """A private key that signs."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls, path: Path | str) -> Self:
        """Create a key in a new file that only its owner can read; an existing file is never overwritten."""
        path = Path(path)
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise ConfigError(f"{path} exists: move it away, or use this key; it is not replaced") from None
        except OSError as error:
            raise ConfigError(f"the signing key {path} cannot be written: {error.strerror}") from error
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return cls(key)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Load the key in a PEM file."""
        try:
            text = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(f"the signing key {path} cannot be read: {error.strerror}") from error
        try:
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"{path} does not contain a private key in PEM without a password") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{path} contains a private key of another kind: an Ed25519 key is required")
        return cls(key)

    @property
    def public(self) -> str:
        """The public key as in messages and TOML files: base64 of its 32 bytes."""
        raw = self._key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return base64.b64encode(raw).decode()

    def sign(self, data: Buffer, context: bytes = CONTEXT) -> bytes:
        """Sign these bytes in a context, by default that of an order."""
        return self._key.sign(context + bytes(data))


def verify(public: str, data: Buffer, signature: Buffer, context: bytes = CONTEXT) -> bool:
    """Return whether the holder of the private key signed these bytes in this context."""
    try:
        _key(public).verify(bytes(signature), context + bytes(data))
    except InvalidSignature:
        return False
    return True


def check_public(public: str, where: str) -> str:
    """Return the public key if it is valid; `where` names its source in errors."""
    try:
        _key(public)
    except ConfigError:
        raise ConfigError(f"{where}: {public[:60]!r} is not the base64 of a public key of 32 bytes") from None
    return public


def read_public(path: Path | str) -> str:
    """Return the public key in a file."""
    try:
        text = Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the release key {path} cannot be read: {why}") from error
    return check_public(text, str(path))


def read_publics(path: Path | str) -> dict[str, str]:
    """Return the public keys in a file with the names that follow them; `#` starts a comment."""
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
        raise ConfigError(f"{path} contains no key: each line needs a key in base64, followed by its owner's name")
    return keys


def _key(public: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    except (ValueError, binascii.Error) as error:
        raise ConfigError(f"{public[:60]!r} is not the base64 of a public key of 32 bytes") from error


# The Ed25519 key of a node that joined its fleet with its own key, which is created on the node and never leaves it.
#
# Signed bytes begin with their purpose, so that a signature for one purpose is not valid for another.

FOR_JOINING = b"sojourn-join-1"
FOR_VISIT = b"sojourn-visit-1"


class NodeKey(Signer):
    """The private key of a node, which signs with a purpose as the context."""

    @property
    def public_bytes(self) -> bytes:
        """The 32 bytes of the public key."""
        return base64.b64decode(self.public)


def signed_for(purpose: bytes, public: bytes, data: Buffer, signature: Buffer) -> bool:
    """Return whether the node with this public key signed these bytes for this purpose."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes(signature), purpose + bytes(data))
    except (InvalidSignature, ValueError):
        return False
    return True


# A device signs its statement about a visit: the visit, its task, its inputs, its outputs, and its amount of data.
#
# The signature is over the msgpack of the statement. The verifier builds the statement from what it knows, so that only
# what it cannot know is sent with the signature.

_PACK = msgspec.msgpack.Encoder()
_TASK = msgspec.msgpack.Decoder(Task)
Pairs = tuple[tuple[str, bytes], ...]


class VisitStatement(msgspec.Struct, frozen=True, array_like=True):
    """A device's statement about one visit."""

    device: Name
    visit: VisitId
    kit: Digest
    task: Digest
    given: Pairs
    """The digests of its input vectors, by name, sorted by name."""
    returned: Pairs
    """The digests of the vectors that it returned, as sent."""
    samples: Samples
    steps: Steps
    found: Annotated[bytes, msgspec.Meta(max_length=32)]
    """The digest of the signature that an estimation found; empty if there is none."""


def task_digest(task: Task) -> bytes:
    """Return the digest of a task's bytes on the wire."""
    return hashlib.sha256(_PACK.encode(_TASK.decode(_PACK.encode(task)))).digest()


def found_digest(signature: tuple[float, ...] | None) -> bytes:
    """Return the digest of an estimation's result."""
    return hashlib.sha256(_PACK.encode(tuple(map(float, signature)))).digest() if signature is not None else b""


def digests_of(vectors: Mapping[str, Ref]) -> Digests:
    """Return the digests of vectors, by name."""
    return {name: ref.digest for name, ref in vectors.items()}


def pairs(digests: Mapping[str, bytes]) -> Pairs:
    """Return digests sorted by name, as they are signed."""
    return tuple(sorted(digests.items()))


def sign(key: NodeKey, statement: VisitStatement) -> HopSignature:
    """Sign a statement; the result includes what the verifier cannot know."""
    return HopSignature(statement.steps, key.sign(_PACK.encode(statement), FOR_VISIT))


def is_signed(statement: VisitStatement, key: bytes, signature: bytes) -> bool:
    """Return whether the node with this public key signed this statement."""
    return signed_for(FOR_VISIT, key, _PACK.encode(statement), signature)
