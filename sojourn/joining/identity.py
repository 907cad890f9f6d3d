"""A node's own keys and certificate: how they are made, asked for, and taken into use."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sojourn.errors import ConfigError
from sojourn.joining.files import AUTHORITIES, CERTIFICATE, JOINED, NEXT_KEY, NODE_KEY
from sojourn.joining.words import Stamp
from sojourn.protocol.limits import Name
from sojourn.protocol.node_signing import FOR_JOINING, NodeKey
from sojourn.store.files import private_folder, write_private

if TYPE_CHECKING:
    from pathlib import Path

_STAMP_BYTES = 16


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """What a node remembers of having joined."""

    name: Name
    host: str
    port: int
    stamp: Stamp
    next: Stamp | None = None
    """The stamp that was offered and whose answer is not known."""


class NodeIdentity:
    """The keys of one node, in their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_joined(self) -> bool:
        """Whether the node was let in before."""
        return (self.folder / JOINED).exists()

    def joined(self) -> Membership:
        """What is remembered of having joined."""
        try:
            return msgspec.json.decode((self.folder / JOINED).read_bytes(), type=Membership)
        except (OSError, msgspec.MsgspecError) as error:
            path = self.folder / JOINED
            raise ConfigError(f"{path} cannot be read ({error}): join again with a new token") from error

    def remember(self, joined: Membership) -> None:
        """Write down what must survive a restart."""
        write_private(self.folder / JOINED, msgspec.json.encode(joined))

    def node_key(self) -> NodeKey:
        """The node's own key, made the first time it is asked for."""
        private_folder(self.folder)
        path = self.folder / NODE_KEY
        return NodeKey.load(path) if path.exists() else NodeKey.generate(path)

    def request(self, name: str) -> bytes:
        """A request for a certificate, for a new key; the same key until the certificate is here."""
        path = self.folder / NEXT_KEY
        key = _load(path) if path.exists() else None
        if key is None:
            private_folder(self.folder)
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(path, _pem(key))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.DER)

    def install(self, certificate: bytes, authorities: bytes) -> None:
        """Take a certificate into use, with the key that it was asked for; the file changes in one step."""
        path = self.folder / NEXT_KEY
        key = _load(path) if path.exists() else None
        issued = x509.load_pem_x509_certificate(certificate)
        if key is None or issued.public_key() != key.public_key():
            raise ConfigError("the door sent a certificate for another key: join again with a new token")
        self.trust(authorities)
        write_private(self.folder / CERTIFICATE, certificate + _pem(key))

    def settle(self) -> None:
        """The certificate is in use, and that is written down: the next one is for another key."""
        (self.folder / NEXT_KEY).unlink(missing_ok=True)

    def trust(self, authorities: bytes) -> None:
        """Write down whom to trust, if that has changed."""
        path = self.folder / AUTHORITIES
        if not path.exists() or path.read_bytes() != authorities:
            write_private(path, authorities)

    def signed(self, data: bytes) -> bytes:
        """The node's signature of a request at the door."""
        return self.node_key().sign_for(FOR_JOINING, data)


def new_stamp() -> bytes:
    """What tells this visit of the door from all others."""
    return secrets.token_bytes(_STAMP_BYTES)


def _load(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """The key in a file; None if it is damaged, as after a power cut: another is as good."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
