"""Asking at a fleet's door: one TLS connection for each question.

Who has only a token knows the fingerprint of an authority. It asks for the authorities' certificates first, over a
connection that proves nothing, keeps the one with that fingerprint, and asks everything else over a connection that
only this one vouches for: nothing that is secret is said before.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from sojourn.errors import InvalidMessage, LinkError, UserError
from sojourn.joining.files import AUTHORITIES, CERTIFICATE
from sojourn.joining.identity import NodeIdentity, new_stamp
from sojourn.joining.token import FINGERPRINT_BYTES
from sojourn.joining.words import (
    LENGTH_BYTES,
    Authorities,
    CertificateCheck,
    Hello,
    Join,
    Renew,
    RequestNoted,
    Return,
    Turned,
    Valid,
    Welcome,
    framed,
    length_of,
    read_answer,
    signed_part,
)
from sojourn.links.clock_fault import clock_fault

if TYPE_CHECKING:
    from sojourn.joining.identity import Membership
    from sojourn.joining.token import Token
    from sojourn.joining.words import Answer, Request

SECONDS = 15.0
"""For the door to answer."""


class TurnedAway(UserError):
    """The door said no."""

    def __init__(self, turned: Turned) -> None:
        super().__init__(turned.reason)
        self.final = turned.final


class Unreached(LinkError):
    """There is no door there now, or no way to it."""


class HungUp(Unreached):
    """The line was cut, or TLS came to nothing: the door may have too many callers."""


class CertificateRefused(LinkError):
    """The door hung up on the certificate that was shown: it has ended, or something else cut the line.

    A server that does not take a certificate says so in TLS, or only hangs up; the door itself knows which it is.
    """


class DoorAddress(NamedTuple):
    """Where a fleet's door is."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def fingerprint(certificate: x509.Certificate) -> bytes:
    """By what a token knows an authority."""
    return certificate.fingerprint(hashes.SHA256())[:FINGERPRINT_BYTES]


def authority_of(token: Token) -> bytes:
    """The certificate of the authority that a token names, as PEM; LinkError if the door knows no such authority."""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    answer = ask(DoorAddress(token.host, token.port), anyone, Hello())
    for found in _certificates(answer.authorities if isinstance(answer, Authorities) else b""):
        if fingerprint(found) == token.authority:
            return found.public_bytes(serialization.Encoding.PEM)
    raise LinkError(
        f"the door at {token.host}:{token.port} is not the one that the token is for: its fingerprint is another. "
        "Somebody stands between, or the fleet's authority was replaced: ask for a new token"
    )


def join(token: Token, authority: bytes, identity: NodeIdentity, name: str, about: str) -> RequestNoted | Welcome:
    """Ask to be let in; TurnedAway says why not."""
    request = Join(token.secret, identity.node_key().public_bytes, identity.request(name), name, about)
    answer = ask(DoorAddress(token.host, token.port), trusting(authority.decode()), _signed(identity, request))
    if isinstance(answer, RequestNoted | Welcome):
        return answer
    raise _unexpected(answer)


def check(identity: NodeIdentity) -> Valid:
    """Ask, with the certificate, how long it is good; whom to trust comes with the answer.

    The next stamp is written down before it is offered: whether the answer arrives or not, the door knows us again.
    """
    joined = identity.joined()
    offered = joined.next or new_stamp()
    identity.remember(msgspec.structs.replace(joined, next=offered))
    request = CertificateCheck(identity.node_key().public_bytes, joined.stamp, offered)
    answer = _shown(identity, joined, request)
    if not isinstance(answer, Valid):
        raise _unexpected(answer)
    identity.remember(msgspec.structs.replace(joined, stamp=offered, next=None))
    _check_authorities(answer.authorities)
    identity.trust(answer.authorities)
    return answer


def renew(identity: NodeIdentity) -> None:
    """Get a new certificate for a new key, with the old one, and take it into use."""
    joined = identity.joined()
    request = Renew(identity.node_key().public_bytes, identity.request(joined.name))
    answer = _shown(identity, joined, request)
    if not isinstance(answer, Welcome):
        raise _unexpected(answer)
    identity.install(answer.certificate, answer.authorities)
    identity.settle()


def come_back(identity: NodeIdentity, about: str) -> RequestNoted | None:
    """Ask for a new certificate when the old one has ended; None when it is here, else it waits for an operator."""
    joined = identity.joined()
    request = Return(identity.node_key().public_bytes, identity.request(joined.name), about)
    context = trusting((identity.folder / AUTHORITIES).read_text())
    answer = ask(DoorAddress(joined.host, joined.port), context, _signed(identity, request))
    if isinstance(answer, RequestNoted):
        return answer
    if not isinstance(answer, Welcome):
        raise _unexpected(answer)
    identity.install(answer.certificate, answer.authorities)
    identity.settle()
    return None


def _shown(identity: NodeIdentity, joined: Membership, request: CertificateCheck | Renew) -> Answer:
    """Ask with the certificate."""
    try:
        return ask(DoorAddress(joined.host, joined.port), _with_certificate(identity), _signed(identity, request))
    except HungUp as error:
        raise CertificateRefused(str(error)) from error


def ask(door: DoorAddress, context: ssl.SSLContext, request: Request) -> Answer:
    """One question, one answer."""
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
            f"the door at {door} is not vouched for by the fleet's authority ({error.verify_message}): "
            "somebody stands between, or it was replaced and a new token is needed"
        ) from error
    except ssl.SSLError as error:
        raise HungUp(f"the door at {door} cannot be spoken with: {error.reason or error}") from error
    except (ConnectionResetError, BrokenPipeError) as error:
        raise HungUp(f"the door at {door} hung up before it answered") from error
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreached(f"the door at {door} cannot be reached: {why}") from error
    except InvalidMessage as error:
        raise LinkError(f"what answers at {door} is no door of ours: {error}") from error


def trusting(authorities: str) -> ssl.SSLContext:
    """A context in which only these authorities vouch for a door."""
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
        raise LinkError("the door sent no authority that can be read: what was trusted before is kept")


def _unexpected(answer: Answer) -> Exception:
    if isinstance(answer, Turned):
        return TurnedAway(answer)
    return LinkError(f"the door answered something else: {type(answer).__name__}")
