"""A node's keys and certificate: their files, creation, requests and renewal."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sojourn.errors import ConfigError
from sojourn.joining.messages import Stamp
from sojourn.protocol.limits import Name
from sojourn.protocol.signing import FOR_JOINING, NodeKey
from sojourn.store.files import private_folder, write_private

# The files of a node's private key folder:
#
# node.key      its Ed25519 key, which identifies it in the fleet and signs results; created once
# node.pem      its certificate for the broker and the private key, in one file that is replaced atomically
# ca.pem        the authorities of the fleet
# next.key      the private key of a requested certificate that has not arrived yet
# joined.json   the address of the door, and the stamps of the last contact with it

NODE_KEY, CERTIFICATE, AUTHORITIES, NEXT_KEY, JOINED = "node.key", "node.pem", "ca.pem", "next.key", "joined.json"


_STAMP_BYTES = 16


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """A node's record of its membership."""

    name: Name
    host: str
    port: int
    stamp: Stamp
    next: Stamp | None = None
    """The stamp that was sent, if the reply has not arrived."""


class NodeIdentity:
    """The keys of a node, in their folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_joined(self) -> bool:
        """Whether the node has joined a fleet."""
        return (self.folder / JOINED).exists()

    def joined(self) -> Membership:
        """Read the membership."""
        try:
            return msgspec.json.decode((self.folder / JOINED).read_bytes(), type=Membership)
        except (OSError, msgspec.MsgspecError) as error:
            path = self.folder / JOINED
            raise ConfigError(f"{path} cannot be read ({error}): join again with a new token") from error

    def remember(self, joined: Membership) -> None:
        """Store the membership."""
        write_private(self.folder / JOINED, msgspec.json.encode(joined))

    def node_key(self) -> NodeKey:
        """Return the node's key, created on first use."""
        private_folder(self.folder)
        path = self.folder / NODE_KEY
        return NodeKey.load(path) if path.exists() else NodeKey.generate(path)

    def request(self, name: str) -> bytes:
        """Create a certificate signing request for a new key, which stays the same until the certificate arrives."""
        path = self.folder / NEXT_KEY
        key = _load(path) if path.exists() else None
        if key is None:
            private_folder(self.folder)
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(path, pem_of(key))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.DER)

    def install(self, certificate: bytes, authorities: bytes) -> None:
        """Install a certificate with the key of its request, atomically."""
        path = self.folder / NEXT_KEY
        key = _load(path) if path.exists() else None
        issued = x509.load_pem_x509_certificate(certificate)
        if key is None or issued.public_key() != key.public_key():
            raise ConfigError("the door sent a certificate for another key: join again with a new token")
        self.trust(authorities)
        write_private(self.folder / CERTIFICATE, certificate + pem_of(key))

    def settle(self) -> None:
        """Complete an installation: the next certificate gets another key."""
        (self.folder / NEXT_KEY).unlink(missing_ok=True)

    def trust(self, authorities: bytes) -> None:
        """Store the trusted authorities if they have changed."""
        path = self.folder / AUTHORITIES
        if not path.exists() or path.read_bytes() != authorities:
            write_private(path, authorities)

    def signed(self, data: bytes) -> bytes:
        """Sign a request to the door with the node's key."""
        return self.node_key().sign(data, FOR_JOINING)


def new_stamp() -> bytes:
    """Return a random stamp, which identifies the next contact with the door."""
    return secrets.token_bytes(_STAMP_BYTES)


def _load(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """Load a key; return None if the file is damaged, for example by a power failure: a new key can replace it."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
