"""The replies of the door: to invited devices, to members, and to members whose certificate has expired.

Requests are untrusted. Without an invitation's secret or a member's key nothing is stored, so that strangers can fill
neither the disk nor the list of requests.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import NamedTuple

import msgspec

from sojourn.brokers import fleet as folders
from sojourn.brokers import invitations
from sojourn.brokers.certificates import CERTIFICATE_DAYS, requested_key
from sojourn.brokers.fleet import FleetFile, FleetMember
from sojourn.brokers.invitations import (
    MAX_VALID_CERTIFICATES,
    Invitation,
    Joining,
    JoinRequest,
    LastSeen,
    admit_request,
    encode_key,
    unique_name,
    valid_certificates,
)
from sojourn.errors import InvalidMessage
from sojourn.joining.messages import (
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
    Valid,
    Welcome,
    invitation_id,
    signed_part,
)
from sojourn.protocol.signing import FOR_JOINING, signed_for

RETRY_SECONDS = 5.0
"""Seconds between two requests of a device that waits for an operator."""
CHECK_SECONDS = 86_400.0
"""Seconds between two checks of a member, so that a copy of its keys is detected within a day, or when it starts."""
RENEW_BEFORE_EXPIRY = CERTIFICATE_DAYS * 86_400.0 / 3
"""A certificate is renewed when fewer seconds than this are left."""


class PresentedCertificate(NamedTuple):
    """A client certificate that TLS verified: its name, serial number, issuer and expiry."""

    name: str
    serial: str
    issuer: str
    until: float


class Reply(NamedTuple):
    """A reply, a note for the log, and whether the broker must reload its files."""

    answer: Answer
    note: str = ""
    reload: bool = False


def handle_request(folder: Path, request: Request, presented: PresentedCertificate | None, now: float) -> Reply:
    """Handle a request, store its effects, and return the reply."""
    if isinstance(request, Hello):
        return Reply(Authorities(_authorities(folder)))
    if not signed_for(FOR_JOINING, request.node_key, signed_part(request), request.signature):
        return Reply(Rejected("the request is not signed with the key that it names"))
    try:
        with folders.locked(folder):
            match request:
                case Join():
                    return _join(folder, request, now)
                case CertificateCheck():
                    return _check(folder, request, presented, now)
                case Renew():
                    return _renew(folder, request, presented, now)
                case Return():
                    return _return(folder, request, now)
    except InvalidMessage as error:
        return Reply(Rejected(str(error)))


def _join(folder: Path, request: Join, now: float) -> Reply:
    requested_key(request.request)
    fleet, joining = folders.read(folder), invitations.read(folder)
    key, invited = encode_key(request.node_key), invitation_id(request.secret)
    earlier = joining.requests.get(key)
    if earlier is not None and earlier.invitation == invited:
        return _repeat_join(folder, fleet, earlier, request.request, now)
    if owner := _owner(fleet, key):
        state = "was revoked" if fleet.members[owner].revoked else "is already a member"
        return Reply(Rejected(f"the device with this key {state}, as {owner}: --new-keys creates another key"))
    invitation = _valid_invitation(fleet, joining.invitations.get(invited), now)
    taken = {*fleet.members, *(each.name for each in joining.waiting if each.node_key != key)}
    name = _assign_name(invitation, request.name, taken)
    asked = JoinRequest(
        name=name, node_key=key, request=request.request, asked=now, about=request.about, invitation=invited,
        replaces=invitation.replaces, data=invitation.data,
    )  # fmt: skip
    used = msgspec.structs.replace(invitation, uses=invitation.uses - 1)
    joining = joining.without_expired(now).with_invitation(invited, used)
    if not invitation.authorised:
        invitations.write(folder, joining.with_request(asked))
        return Reply(
            RequestPending(name, RETRY_SECONDS), f"{name} asks to join ({request.about}): sojourn fleet accept {name}"
        )
    fleet, asked = admit_request(folder, fleet, asked, now)
    # The request first: after a crash between the two writes, the device repeats it, and `_repeat_join` adds it.
    invitations.write(folder, joining.without_stamp(name).with_request(asked))
    folders.write(folder, fleet, folders.password_hashes(folder))
    return Reply(_welcome(folder, fleet, asked), f"{name} has joined ({request.about})", reload=True)


def _repeat_join(folder: Path, fleet: FleetFile, earlier: JoinRequest, request: bytes, now: float) -> Reply:
    """Reply to a repeated request with its current state."""
    if earlier.state == "waiting":
        return Reply(RequestPending(earlier.name, RETRY_SECONDS))
    if earlier.state == "rejected":
        return Reply(Rejected(f"an operator has rejected the request of {earlier.name}"))
    if requested_key(request) != requested_key(earlier.request):
        return Reply(Rejected(f"{earlier.name} has joined with another key: a token is for one device"))
    member = fleet.members.get(earlier.name)
    if member is None:  # removed members lose their requests, so this follows a crash between the two writes
        fleet, earlier = admit_request(folder, fleet, earlier, now)
        folders.write(folder, fleet, folders.password_hashes(folder))
        invitations.write(folder, invitations.read(folder).with_request(earlier))
        return Reply(_welcome(folder, fleet, earlier), f"{earlier.name} has joined", reload=True)
    if member.revoked or member.node_key != earlier.node_key:
        return Reply(Rejected(f"{earlier.name} joined earlier and is no longer a member"))
    return Reply(_welcome(folder, fleet, earlier))


def _valid_invitation(fleet: FleetFile, invitation: Invitation | None, now: float) -> Invitation:
    """Return the invitation; raise InvalidMessage if it is not valid."""
    if invitation is None:
        raise InvalidMessage("this token is unknown, or its invitation was cancelled: ask for a new token")
    if invitation.ends <= now:
        ended = dt.datetime.fromtimestamp(invitation.ends, dt.UTC).isoformat(sep=" ", timespec="minutes")
        raise InvalidMessage(f"the token expired at {ended}: ask for a new one")
    if invitation.uses < 1:
        raise InvalidMessage("the token was already used by the maximum number of devices: ask for a new one")
    if invitation.name in fleet.members and not invitation.replaces:
        raise InvalidMessage(f"a member {invitation.name!r} exists by now: ask for a new token")
    return invitation


def _assign_name(invitation: Invitation, wanted: str, taken: set[str]) -> str:
    if invitation.name:
        return invitation.name
    if invitation.prefix:
        return unique_name(invitation.prefix, taken, numbered=True)
    return unique_name(wanted, taken, numbered=False)


def _check(folder: Path, request: CertificateCheck, presented: PresentedCertificate | None, now: float) -> Reply:
    fleet, joining = folders.read(folder), invitations.read(folder)
    presented, _ = _authenticate(fleet, presented, encode_key(request.node_key))
    name, note = presented.name, ""
    seen = joining.seen.get(name)
    if seen is None or seen.stamp in {request.stamp, request.next}:
        cloned = seen.cloned if seen else ""
    else:
        cloned = seen.cloned or dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="seconds")
        note = "" if seen.cloned else f"two devices have the keys of {name}: one was copied from the other"
    if cloned:
        if note and seen:
            invitations.write(folder, joining.with_seen(name, LastSeen(seen.stamp, seen.at, cloned)))
        return Reply(Rejected(_clone_message(name), final=False), note)
    joining = msgspec.structs.replace(joining, requests=_pending_requests(joining, request.node_key))
    invitations.write(folder, joining.with_seen(name, LastSeen(request.next, now)))
    due = _is_due(folder, presented, now)
    left = presented.until - now - RENEW_BEFORE_EXPIRY
    return Reply(Valid(0.0 if due else min(CHECK_SECONDS, max(left, 1.0)), due, _authorities(folder)))


def _is_due(folder: Path, presented: PresentedCertificate, now: float) -> bool:
    """Return whether two thirds of the certificate's lifetime are over, or its authority is being replaced."""
    return presented.until - now <= RENEW_BEFORE_EXPIRY or presented.issuer != folders.load_authority(folder).name


def _renew(folder: Path, request: Renew, presented: PresentedCertificate | None, now: float) -> Reply:
    fleet, joining = folders.read(folder), invitations.read(folder)
    key = encode_key(request.node_key)
    presented, member = _authenticate(fleet, presented, key)
    seen = joining.seen.get(presented.name)
    if seen and seen.cloned:
        return Reply(Rejected(_clone_message(presented.name), final=False))
    if not _is_due(folder, presented, now):
        return Reply(Rejected("the certificate is not due for renewal", final=False))
    if len(valid_certificates(member, now)) >= MAX_VALID_CERTIFICATES:
        return Reply(Rejected("too many valid certificates: wait until some have expired", final=False))
    asked = JoinRequest(name=presented.name, node_key=key, request=request.request, asked=now, about="")
    fleet, asked = admit_request(folder, fleet, asked, now)
    folders.write(folder, fleet, folders.password_hashes(folder))
    return Reply(_welcome(folder, fleet, asked), f"{presented.name} has a new certificate")


def _return(folder: Path, request: Return, now: float) -> Reply:
    """Handle a member whose certificate has expired: it must have its key, and an operator must accept it again."""
    requested_key(request.request)
    fleet, joining = folders.read(folder), invitations.read(folder)
    key = encode_key(request.node_key)
    name = _owner(fleet, key)
    if name is None:
        return Reply(Rejected("no member has this key: join with a new token and --new-keys"))
    if fleet.members[name].revoked:
        return Reply(Rejected(f"{name} was revoked on {fleet.members[name].revoked}"))
    earlier = joining.requests.get(key)
    fetched = not earlier or not earlier.returns or earlier.state != "accepted"
    if fetched and fleet.members[name].serial in valid_certificates(fleet.members[name], now):
        return Reply(Rejected("the certificate has not expired: connect with it", final=False))
    if earlier and earlier.returns:
        if earlier.state == "rejected":
            return Reply(Rejected(f"an operator has rejected the request of {name}"))
        if requested_key(earlier.request) == requested_key(request.request):
            waits = earlier.state == "waiting"
            return Reply(RequestPending(name, RETRY_SECONDS) if waits else _welcome(folder, fleet, earlier))
    asked = JoinRequest(name=name, node_key=key, request=request.request, asked=now, about=request.about)
    invitations.write(folder, joining.without_expired(now).with_request(asked))
    note = f"the certificate of {name} has expired ({request.about}): sojourn fleet accept {name}"
    return Reply(RequestPending(name, RETRY_SECONDS), "" if earlier and earlier.state == "waiting" else note)


def _authenticate(
    fleet: FleetFile, presented: PresentedCertificate | None, key: str
) -> tuple[PresentedCertificate, FleetMember]:
    """Return a valid client certificate and its member; raise InvalidMessage if it or the signing key is invalid."""
    if presented is None:
        raise InvalidMessage("this request requires a certificate of the fleet")
    member = fleet.members.get(presented.name)
    if member is None or member.revoked or presented.serial in fleet.revoked:
        raise InvalidMessage(f"{presented.name} was revoked or removed from the fleet")
    if member.node_key != key or presented.serial not in member.serials:
        raise InvalidMessage(f"this is not the key or the certificate with which {presented.name} joined")
    return presented, member


def _owner(fleet: FleetFile, key: str) -> str | None:
    return next((name for name, member in fleet.members.items() if member.node_key == key), None)


def _pending_requests(joining: Joining, node_key: bytes) -> dict[str, JoinRequest]:
    """Return the requests without a decided one of this key: the member has received its certificate."""
    key = encode_key(node_key)
    return {known: each for known, each in joining.requests.items() if known != key or each.state == "waiting"}


def _welcome(folder: Path, fleet: FleetFile, request: JoinRequest) -> Welcome:
    operators = folder / folders.OPERATOR_KEYS
    return Welcome(
        request.name,
        fleet.fleet,
        request.certificate.encode(),
        _authorities(folder),
        fleet.hosts[0],
        fleet.listeners.certificate,
        tuple(fleet.named("edge")),
        {"release": fleet.release_key} if fleet.release_key else {},
        request.data,
        operators.read_bytes() if operators.exists() else b"",
    )


def _authorities(folder: Path) -> bytes:
    return (folder / folders.CA_FILE).read_bytes()


def _clone_message(name: str) -> str:
    return (
        f"two devices seem to have the keys of {name}, for example copies of an SD card: an operator must decide "
        f"(`sojourn fleet revoke {name}` and a new token for each, or `sojourn fleet accept {name}` if it is one "
        "device)"
    )
