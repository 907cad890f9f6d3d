"""The key of a node that has joined its fleet with one of its own: Ed25519, made on the node, and never leaving it.

What is signed begins with words that say what for, so that a signature for one purpose is never one for another.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sojourn.protocol.signing import Signer

if TYPE_CHECKING:
    from typing_extensions import Buffer

FOR_JOINING = b"sojourn-join-1"
FOR_VISIT = b"sojourn-visit-1"


class NodeKey(Signer):
    """The private key of a node."""

    def sign_for(self, purpose: bytes, data: Buffer) -> bytes:
        """The signature of these bytes for one purpose."""
        return self._key.sign(purpose + bytes(data))

    @property
    def public_bytes(self) -> bytes:
        """The 32 bytes of the public key."""
        return base64.b64decode(self.public)


def signed_for(purpose: bytes, public: bytes, data: Buffer, signature: Buffer) -> bool:
    """Whether the node with this public key signed these bytes for this purpose."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes(signature), purpose + bytes(data))
    except (InvalidSignature, ValueError):
        return False
    return True
