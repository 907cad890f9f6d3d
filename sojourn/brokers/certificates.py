"""A small certificate authority: it vouches for a broker to its nodes, and for nodes to the broker."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from typing import TYPE_CHECKING, NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sojourn.errors import ConfigError, InvalidMessage

if TYPE_CHECKING:
    from collections.abc import Sequence

# A device without a clock of its own may wake up years ago and must reach its broker all the same.
_BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_YEARS_OF_AUTHORITY = 30
_YEARS_OF_CERTIFICATE = 10
_DAYS_OF_YEAR = 365
DAYS_OF_JOINED = 30
"""How long a certificate lasts that was given at the door; it is renewed there when a third of that is left."""
NODE_KEY = "sojourn-node-key:"
"""How the name begins under which a certificate holds the public half of the node's own key."""
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")


class Issued(NamedTuple):
    """A certificate with its private key, both as PEM, and its serial number in hexadecimal."""

    certificate: bytes
    key: bytes
    serial: str


class Vouched(NamedTuple):
    """A certificate for a key that stays with its owner, its serial number, and its last moment."""

    certificate: bytes
    serial: str
    until: dt.datetime


class Authority:
    """A certificate authority of one fleet: it signs the certificates of its broker and its members."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str) -> Self:
        """A new authority with a new key."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(_named(name), _named(name), key, _YEARS_OF_AUTHORITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """An authority from its PEM texts."""
        try:
            private = serialization.load_pem_private_key(key, password=None)
            known = x509.load_pem_x509_certificate(certificate)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"the certificate authority cannot be read: {error}") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != known.public_key():
            raise ConfigError("the certificate authority's key does not belong to its certificate")
        return cls(known, private)

    @property
    def certificate(self) -> bytes:
        """What those who trust this authority need, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The authority's secret, as PEM."""
        return _secret(self._key)

    @property
    def known_as(self) -> x509.Certificate:
        """The authority's own certificate."""
        return self._certificate

    @property
    def name(self) -> str:
        """What the authority is called; one that takes its place is called otherwise."""
        (found,) = self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found.value)

    def for_request(self, request: bytes, name: str, node_key: str, now: dt.datetime) -> Vouched:
        """A certificate for a node's own key, and bound to the one that it signs with; it lasts for some weeks.

        Of the request only the key counts, with the proof that its owner has it: the name is ours to give.
        """
        key = requested_key(request)
        until = now + dt.timedelta(days=DAYS_OF_JOINED)
        certificate = (
            _with_purpose(x509.CertificateBuilder(), self._key, ExtendedKeyUsageOID.CLIENT_AUTH)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(NODE_KEY + node_key)]), critical=False
            )
            .subject_name(_named(name))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_BEGIN)
            .not_valid_after(until)
            .sign(self._key, hashes.SHA256())
        )
        text = certificate.public_bytes(serialization.Encoding.PEM)
        return Vouched(text, f"{certificate.serial_number:x}", until)

    def for_node(self, name: str) -> Issued:
        """A certificate with which a node shows the broker who it is: its name is its username there."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def for_broker(self, hosts: Sequence[str]) -> Issued:
        """A certificate with which a broker shows who it is, under all the names and addresses it is reached by."""
        if not hosts:
            raise ConfigError("a broker needs at least one host name or address")
        return self._issue(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, [_host(host) for host in hosts])

    def revoked(self, serials: Sequence[str]) -> bytes:
        """The list of certificates that are no longer valid, as PEM. It does not expire before the authority does."""
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(_BEGIN)
            # OpenSSL refuses everybody once a list is past its date.
            .next_update(self._certificate.not_valid_after_utc)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(int(serial, 16)).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _issue(self, name: str, purpose: x509.ObjectIdentifier, hosts: list[x509.GeneralName]) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._certificate.subject, key, _YEARS_OF_CERTIFICATE)
        builder = _with_purpose(builder, self._key, purpose)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        text = certificate.public_bytes(serialization.Encoding.PEM)
        return Issued(text, _secret(key), f"{certificate.serial_number:x}")


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key in a certificate signing request, if who asks has its private half and it is of the kind we use."""
    try:
        asked = x509.load_der_x509_csr(request)
        key, proven = asked.public_key(), asked.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidMessage(f"not a request for a certificate: {error}") from error
    if not proven or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidMessage("the request for a certificate does not prove a key on P-256")
    return key


def _with_purpose(
    builder: x509.CertificateBuilder, authority: ec.EllipticCurvePrivateKey, purpose: x509.ObjectIdentifier
) -> x509.CertificateBuilder:
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, years: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(dt.datetime.now(dt.UTC) + dt.timedelta(days=_DAYS_OF_YEAR * years))
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{host!r} is neither a host name nor an address")
    return x509.DNSName(host)


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
