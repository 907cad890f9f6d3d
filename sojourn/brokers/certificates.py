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

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A device without a clock of its own may wake up years ago and must reach its broker all the same.
_BEGIN = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_YEARS_OF_AUTHORITY = 30
_YEARS_OF_CERTIFICATE = 10
_DAYS_OF_YEAR = 365
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")


class Issued(NamedTuple):
    """A certificate with its private key, both as PEM, and its serial number in hexadecimal."""

    certificate: bytes
    key: bytes
    serial: str


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
        builder = (
            _builder(_named(name), self._certificate.subject, key, _YEARS_OF_CERTIFICATE)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        text = certificate.public_bytes(serialization.Encoding.PEM)
        return Issued(text, _secret(key), f"{certificate.serial_number:x}")


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
