"""A small certificate authority, which issues the certificates of brokers and nodes."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sojourn.errors import ConfigError, InvalidMessage
from sojourn.joining.identity import pem_of

# A device without a hardware clock may start with a date years ago, and must still reach its broker.
_NOT_BEFORE = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_AUTHORITY_YEARS = 30
_CERTIFICATE_YEARS = 10
_DAYS_PER_YEAR = 365
CERTIFICATE_DAYS = 30
"""The lifetime of a certificate issued by the door, which renews it when a third is left."""
NODE_KEY = "sojourn-node-key:"
"""The prefix of the URI in a certificate with the node's public key."""
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")


class Issued(NamedTuple):
    """A certificate with its private key, both as PEM, and its serial number in hexadecimal."""

    certificate: bytes
    key: bytes
    serial: str


class SignedCertificate(NamedTuple):
    """A certificate for a key that stays with its owner, its serial number, and its expiry."""

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
        """Create an authority with a new key."""
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
            _builder(_common_name(name), _common_name(name), key.public_key(), _after_years(_AUTHORITY_YEARS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Self:
        """Load an authority from its PEM texts."""
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
        """The certificate, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """The private key, as PEM."""
        return pem_of(self._key)

    @property
    def own_certificate(self) -> x509.Certificate:
        """The authority's certificate."""
        return self._certificate

    @property
    def name(self) -> str:
        """The authority's common name; a replacement has another name."""
        (found,) = self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(found.value)

    def sign_request(self, request: bytes, name: str, node_key: str, now: dt.datetime) -> SignedCertificate:
        """Sign a certificate for a node's own TLS key, bound to its signing key, with a lifetime of `CERTIFICATE_DAYS`.

        Only the key in the request is used, with the proof of its possession; the caller determines the name.
        """
        key = requested_key(request)
        until = now + dt.timedelta(days=CERTIFICATE_DAYS)
        names = [x509.UniformResourceIdentifier(NODE_KEY + node_key)]
        certificate = self._sign(name, key, until, ExtendedKeyUsageOID.CLIENT_AUTH, names)
        text = certificate.public_bytes(serialization.Encoding.PEM)
        return SignedCertificate(text, f"{certificate.serial_number:x}", until)

    def issue_for_node(self, name: str) -> Issued:
        """Issue a client certificate for a node, whose common name is its user name at the broker."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def issue_for_broker(self, hosts: Sequence[str]) -> Issued:
        """Issue a server certificate for a broker, for all its host names and addresses."""
        if not hosts:
            raise ConfigError("a broker needs at least one host name or address")
        return self._issue(hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, [_host(host) for host in hosts])

    def revocation_list(self, serials: Sequence[str]) -> bytes:
        """Return the certificate revocation list as PEM; it expires with the authority."""
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(_NOT_BEFORE)
            # OpenSSL rejects all clients once the list has expired.
            .next_update(self._certificate.not_valid_after_utc)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(int(serial, 16)).revocation_date(now).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _issue(self, name: str, purpose: x509.ObjectIdentifier, hosts: list[x509.GeneralName]) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key.public_key(), _after_years(_CERTIFICATE_YEARS), purpose, hosts)
        text = certificate.public_bytes(serialization.Encoding.PEM)
        return Issued(text, pem_of(key), f"{certificate.serial_number:x}")

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        until: dt.datetime,
        purpose: x509.ObjectIdentifier,
        names: Sequence[x509.GeneralName],
    ) -> x509.Certificate:
        """Sign a certificate for one purpose, with these alternative names, if any."""
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _builder(_common_name(name), self._certificate.subject, key, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer, critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate signing request; raise InvalidMessage unless it is a proven P-256 key."""
    try:
        asked = x509.load_der_x509_csr(request)
        key, proven = asked.public_key(), asked.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidMessage(f"not a certificate signing request: {error}") from error
    if not proven or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidMessage("the certificate signing request does not prove possession of a P-256 key")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(until)
    )


def _after_years(years: int) -> dt.datetime:
    return dt.datetime.now(dt.UTC) + dt.timedelta(days=_DAYS_PER_YEAR * years)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise ConfigError(f"{host!r} is neither a host name nor an address")
    return x509.DNSName(host)
