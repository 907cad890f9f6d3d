"""The client of a fleet's door, with one TLS connection for each request.

A token contains only the fingerprint of the authority. The client first fetches the authorities' certificates over an
unverified connection, keeps the one with that fingerprint, and sends everything else over connections verified with it:
nothing secret is sent before.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from typing import NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from sojourn.errors import InvalidMessage, LinkError, UserError
from sojourn.joining.identity import AUTHORITIES, CERTIFICATE, Membership, NodeIdentity, new_stamp
from sojourn.joining.messages import (
    FINGERPRINT_BYTES,
    LENGTH_BYTES,
    Answer,
    Authorities,
    CertificateCheck,
    Hello,
    Join,
    Rejected,
    Renew,
    Request,
    RequestPending,
    Return,
    Token,
    Valid,
    Welcome,
    framed,
    length_of,
    read_answer,
    signed_part,
)
from sojourn.links.connection_errors import clock_fault

SECONDS = 15.0
"""Timeout for the door's reply, in seconds."""


class JoinRefused(UserError):
    """The door rejected the request."""

    def __init__(self, rejection: Rejected) -> None:
        super().__init__(rejection.reason)
        self.final = rejection.final


class DoorUnreachable(LinkError):
    """The door cannot be reached."""


class ConnectionClosed(DoorUnreachable):
    """The connection was closed, or TLS failed: the door may have too many connections."""


class CertificateRefused(LinkError):
    """The door closed a connection with a client certificate: it has expired, or the connection failed.

    A server that rejects a certificate sends a TLS alert, or only closes the connection: the client cannot distinguish
    the two.
    """


class DoorAddress(NamedTuple):
    """The address of a fleet's door."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def fingerprint(certificate: x509.Certificate) -> bytes:
    """Return the fingerprint of an authority, as in a token."""
    return certificate.fingerprint(hashes.SHA256())[:FINGERPRINT_BYTES]


def fetch_authority(token: Token) -> bytes:
    """Fetch the authority's certificate with the token's fingerprint, as PEM; raise LinkError if the door has none."""
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    answer = ask(DoorAddress(token.host, token.port), unverified, Hello())
    for found in _certificates(answer.authorities if isinstance(answer, Authorities) else b""):
        if fingerprint(found) == token.authority:
            return found.public_bytes(serialization.Encoding.PEM)
    raise LinkError(
        f"the door at {token.host}:{token.port} does not match the token's fingerprint: the connection is intercepted, "
        "or the fleet's authority was replaced; ask for a new token"
    )


def join(token: Token, authority: bytes, identity: NodeIdentity, name: str, about: str) -> RequestPending | Welcome:
    """Request to join; raise JoinRefused if the door rejects the request."""
    request = Join(token.secret, identity.node_key().public_bytes, identity.request(name), name, about)
    answer = ask(DoorAddress(token.host, token.port), trusting(authority.decode()), _signed(identity, request))
    if isinstance(answer, RequestPending | Welcome):
        return answer
    raise _unexpected(answer)


def check(identity: NodeIdentity) -> Valid:
    """Check how long the certificate is valid, and update the trusted authorities.

    The next stamp is stored before it is sent, so that the door recognises this node whether or not its reply arrives.
    """
    joined = identity.joined()
    offered = joined.next or new_stamp()
    identity.remember(msgspec.structs.replace(joined, next=offered))
    request = CertificateCheck(identity.node_key().public_bytes, joined.stamp, offered)
    answer = _ask_with_certificate(identity, joined, request)
    if not isinstance(answer, Valid):
        raise _unexpected(answer)
    identity.remember(msgspec.structs.replace(joined, stamp=offered, next=None))
    _check_authorities(answer.authorities)
    identity.trust(answer.authorities)
    return answer


def renew(identity: NodeIdentity) -> None:
    """Renew the certificate, with a new key, and install it."""
    joined = identity.joined()
    request = Renew(identity.node_key().public_bytes, identity.request(joined.name))
    answer = _ask_with_certificate(identity, joined, request)
    if not isinstance(answer, Welcome):
        raise _unexpected(answer)
    identity.install(answer.certificate, answer.authorities)
    identity.settle()


def come_back(identity: NodeIdentity, about: str) -> RequestPending | None:
    """Request a certificate after the old one has expired; None if installed, otherwise an operator must accept it."""
    joined = identity.joined()
    request = Return(identity.node_key().public_bytes, identity.request(joined.name), about)
    context = trusting((identity.folder / AUTHORITIES).read_text())
    answer = ask(DoorAddress(joined.host, joined.port), context, _signed(identity, request))
    if isinstance(answer, RequestPending):
        return answer
    if not isinstance(answer, Welcome):
        raise _unexpected(answer)
    identity.install(answer.certificate, answer.authorities)
    identity.settle()
    return None


def _ask_with_certificate(identity: NodeIdentity, joined: Membership, request: CertificateCheck | Renew) -> Answer:
    """Send a request with the client certificate."""
    try:
        return ask(DoorAddress(joined.host, joined.port), _with_certificate(identity), _signed(identity, request))
    except ConnectionClosed as error:
        raise CertificateRefused(str(error)) from error


def ask(door: DoorAddress, context: ssl.SSLContext, request: Request) -> Answer:
    """Send a request and return the reply."""
    try:
        with (
            socket.create_connection(door, timeout=SECONDS) as plain,
            closing(context.wrap_socket(plain, server_hostname=door.host)) as line,
        ):
            line.sendall(framed(request))
            head = _exactly(line, LENGTH_BYTES)
            return read_answer(_exactly(line, length_of(head)))
    except ssl.SSLCertVerificationError as error:
        if fault := clock_fault(error, f"the door at {door}", door):
            raise LinkError(fault) from error
        raise LinkError(
            f"the certificate of the door at {door} is not from the fleet's authority ({error.verify_message}): "
            "the connection is intercepted, or the authority was replaced and you need a new token"
        ) from error
    except ssl.SSLError as error:
        raise ConnectionClosed(f"TLS with the door at {door} failed: {error.reason or error}") from error
    except (ConnectionResetError, BrokenPipeError) as error:
        raise ConnectionClosed(f"the door at {door} closed the connection before it replied") from error
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DoorUnreachable(f"the door at {door} cannot be reached: {why}") from error
    except InvalidMessage as error:
        raise LinkError(f"the server at {door} is not the door of a Sojourn fleet: {error}") from error


def trusting(authorities: str) -> ssl.SSLContext:
    """Return a TLS context that trusts only these authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authorities)
    return context


def _with_certificate(identity: NodeIdentity) -> ssl.SSLContext:
    context = trusting((identity.folder / AUTHORITIES).read_text())
    context.load_cert_chain(identity.folder / CERTIFICATE)
    return context


def _signed(identity: NodeIdentity, request: Join | CertificateCheck | Renew | Return) -> Request:
    return msgspec.structs.replace(request, signature=identity.signed(signed_part(request)))


def _exactly(line: ssl.SSLSocket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = line.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def _certificates(authorities: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(authorities)
    except ValueError:
        return []


def _check_authorities(authorities: bytes) -> None:
    if not _certificates(authorities):
        raise LinkError("the door sent no valid authority: the trusted authorities are not changed")


def _unexpected(answer: Answer) -> Exception:
    if isinstance(answer, Rejected):
        return JoinRefused(answer)
    return LinkError(f"the door sent an unexpected reply: {type(answer).__name__}")
