"""What the door answers: to those who were invited, to members, and to members that were away for too long.

All that is asked was written by somebody who may be hostile. Without an invitation's secret or a member's key nothing
is written down here, so that strangers can fill neither the disk nor the list of those who wait.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sojourn.brokers import fleet as folders
from sojourn.brokers import joining_file
from sojourn.brokers.certificates import DAYS_OF_JOINED, requested_key
from sojourn.brokers.joining import MOST_FORMER, encoded, free_name, still_good, vouched
from sojourn.brokers.joining_file import JoinRequest, LastSeen
from sojourn.errors import InvalidMessage
from sojourn.joining.token import invitation_id
from sojourn.joining.words import (
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
    signed_part,
)
from sojourn.protocol.node_signing import FOR_JOINING, signed_for

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.brokers.fleet import FleetFile, FleetMember
    from sojourn.brokers.joining_file import Invitation, Joining
    from sojourn.joining.words import Answer, Request

ASK_AGAIN = 5.0
"""Seconds between two looks of who waits for an operator."""
CHECK_AGAIN = 86_400.0
"""Seconds between two looks of a member: so a second holder of its keys is noticed within a day, or when it starts."""
DUE_SECONDS = DAYS_OF_JOINED * 86_400.0 / 3
"""A certificate with less time than this is renewed."""


class Shown(NamedTuple):
    """The certificate that somebody showed and TLS found good: whose, which, of which authority, until when."""

    name: str
    serial: str
    issuer: str
    until: float


class Answered(NamedTuple):
    """What is said, what goes to the log, and whether the broker has to read its files again."""

    answer: Answer
    note: str = ""
    reload: bool = False


def answer_to(folder: Path, request: Request, shown: Shown | None, now: float) -> Answered:
    """Answer one request, and write down what follows from it."""
    if isinstance(request, Hello):
        return Answered(Authorities(_authorities(folder)))
    if not signed_for(FOR_JOINING, request.node_key, signed_part(request), request.signature):
        return Answered(Turned("the request is not signed with the key that it names"))
    try:
        with folders.alone(folder):
            match request:
                case Join():
                    return _join(folder, request, now)
                case CertificateCheck():
                    return _check(folder, request, shown, now)
                case Renew():
                    return _renew(folder, request, shown, now)
                case Return():
                    return _return(folder, request, now)
    except InvalidMessage as error:
        return Answered(Turned(str(error)))


def _join(folder: Path, request: Join, now: float) -> Answered:
    requested_key(request.request)
    fleet, joining = folders.read(folder), joining_file.read(folder)
    key, invited = encoded(request.node_key), invitation_id(request.secret)
    earlier = joining.requests.get(key)
    if earlier is not None and earlier.invitation == invited:
        return _again(folder, fleet, earlier, request.request, now)
    if owner := _owner(fleet, key):
        state = "was revoked" if fleet.members[owner].revoked else "is a member already"
        return Answered(Turned(f"the device with this key {state}, as {owner}: --anew makes another key"))
    invitation = joining.invitations.get(invited)
    if refusal := _refusal(fleet, invitation, now):
        return Answered(Turned(refusal))
    assert invitation is not None  # noqa: S101  # or it would be refused
    taken = {*fleet.members, *(each.name for each in joining.waiting if each.node_key != key)}
    name = _name(invitation, request.name, taken)
    asked = JoinRequest(
        name=name, node_key=key, request=request.request, asked=now, about=request.about, invitation=invited,
        replaces=invitation.replaces, data=invitation.data,
    )  # fmt: skip
    used = msgspec.structs.replace(invitation, uses=invitation.uses - 1)
    joining = joining.tidied(now).with_invitation(invited, used)
    if not invitation.authorised:
        joining_file.write(folder, joining.with_request(asked))
        return Answered(
            RequestNoted(name, ASK_AGAIN), f"{name} asks to join ({request.about}): sojourn fleet accept {name}"
        )
    fleet, asked = vouched(folder, fleet, asked, now)
    # The request first: if we are interrupted between the two, the device asks again, and `_again` makes it a member.
    joining_file.write(folder, joining.unseen(name).with_request(asked))
    folders.write(folder, fleet, folders.hashes_of(folder))
    return Answered(_welcome(folder, fleet, asked), f"{name} has joined ({request.about})", reload=True)


def _again(folder: Path, fleet: FleetFile, earlier: JoinRequest, request: bytes, now: float) -> Answered:
    """Who asked before asks again, and is told what has become of it."""
    if earlier.state == "waiting":
        return Answered(RequestNoted(earlier.name, ASK_AGAIN))
    if earlier.state == "rejected":
        return Answered(Turned(f"an operator has rejected the request of {earlier.name}"))
    if requested_key(request) != requested_key(earlier.request):
        return Answered(Turned(f"{earlier.name} has been let in with another key: a token is for one device"))
    member = fleet.members.get(earlier.name)
    if member is None:  # whoever is removed loses its request too: we were interrupted
        fleet, earlier = vouched(folder, fleet, earlier, now)
        folders.write(folder, fleet, folders.hashes_of(folder))
        joining_file.write(folder, joining_file.read(folder).with_request(earlier))
        return Answered(_welcome(folder, fleet, earlier), f"{earlier.name} has joined", reload=True)
    if member.revoked or member.node_key != earlier.node_key:
        return Answered(Turned(f"{earlier.name} was let in and is a member no more"))
    return Answered(_welcome(folder, fleet, earlier))


def _refusal(fleet: FleetFile, invitation: Invitation | None, now: float) -> str | None:
    """Why an invitation does not count."""
    if invitation is None:
        return "nobody was invited with this token, or the invitation was taken back: ask for a new one"
    if invitation.ends <= now:
        ended = dt.datetime.fromtimestamp(invitation.ends, dt.UTC).isoformat(sep=" ", timespec="minutes")
        return f"the token has ended, at {ended}: ask for a new one"
    if invitation.uses < 1:
        return "the token was used already, by as many devices as it is for: ask for a new one"
    if invitation.name in fleet.members and not invitation.replaces:
        return f"there is a member {invitation.name!r} by now: ask for a new token"
    return None


def _name(invitation: Invitation, wanted: str, taken: set[str]) -> str:
    if invitation.name:
        return invitation.name
    if invitation.prefix:
        return free_name(invitation.prefix, taken, numbered=True)
    return free_name(wanted, taken, numbered=False)


def _check(folder: Path, request: CertificateCheck, shown: Shown | None, now: float) -> Answered:
    fleet, joining = folders.read(folder), joining_file.read(folder)
    found = _shown_member(fleet, shown, encoded(request.node_key))
    if isinstance(found, Turned):
        return Answered(found)
    assert shown is not None  # noqa: S101  # or it would have been turned away
    name, note = shown.name, ""
    seen = joining.seen.get(name)
    if seen is None or seen.stamp in {request.stamp, request.next}:
        doubted = seen.doubted if seen else ""
    else:
        doubted = seen.doubted or dt.datetime.fromtimestamp(now, dt.UTC).isoformat(timespec="seconds")
        note = "" if seen.doubted else f"two devices have the keys of {name}: one was copied from the other"
    if doubted:
        if note and seen:
            joining_file.write(folder, joining.with_seen(name, LastSeen(seen.stamp, seen.at, doubted)))
        return Answered(Turned(_doubt(name), final=False), note)
    joining = msgspec.structs.replace(joining, requests=_without_answered(joining, request.node_key))
    joining_file.write(folder, joining.with_seen(name, LastSeen(request.next, now)))
    due = _is_due(folder, shown, now)
    left = shown.until - now - DUE_SECONDS
    return Answered(Valid(0.0 if due else min(CHECK_AGAIN, max(left, 1.0)), due, _authorities(folder)))


def _is_due(folder: Path, shown: Shown, now: float) -> bool:
    """Whether two thirds of the certificate's life are over, or it is of an authority that is being replaced."""
    return shown.until - now <= DUE_SECONDS or shown.issuer != folders.authority_of(folder).name


def _renew(folder: Path, request: Renew, shown: Shown | None, now: float) -> Answered:
    fleet, joining = folders.read(folder), joining_file.read(folder)
    key = encoded(request.node_key)
    found = _shown_member(fleet, shown, key)
    if isinstance(found, Turned):
        return Answered(found)
    assert shown is not None  # noqa: S101  # or it would have been turned away
    seen = joining.seen.get(shown.name)
    if seen and seen.doubted:
        return Answered(Turned(_doubt(shown.name), final=False))
    if not _is_due(folder, shown, now):
        return Answered(Turned("the certificate is good for some time yet", final=False))
    if len(still_good(found, now)) >= MOST_FORMER:
        return Answered(Turned("too many certificates were asked for: wait until some have ended", final=False))
    asked = JoinRequest(name=shown.name, node_key=key, request=request.request, asked=now, about="")
    fleet, asked = vouched(folder, fleet, asked, now)
    folders.write(folder, fleet, folders.hashes_of(folder))
    return Answered(_welcome(folder, fleet, asked), f"{shown.name} has a new certificate")


def _return(folder: Path, request: Return, now: float) -> Answered:
    """A member whose certificate has ended; only an operator lets it in again, and only who has its key can ask."""
    requested_key(request.request)
    fleet, joining = folders.read(folder), joining_file.read(folder)
    key = encoded(request.node_key)
    name = _owner(fleet, key)
    if name is None:
        return Answered(Turned("no member has this key: join with a new token, and --anew"))
    if fleet.members[name].revoked:
        return Answered(Turned(f"{name} was revoked on {fleet.members[name].revoked}"))
    earlier = joining.requests.get(key)
    fetched = not earlier or not earlier.returns or earlier.state != "accepted"
    if fetched and fleet.members[name].serial in still_good(fleet.members[name], now):
        return Answered(Turned("the certificate has not ended: come with it", final=False))
    if earlier and earlier.returns:
        if earlier.state == "rejected":
            return Answered(Turned(f"an operator has rejected the request of {name}"))
        if requested_key(earlier.request) == requested_key(request.request):
            waits = earlier.state == "waiting"
            return Answered(RequestNoted(name, ASK_AGAIN) if waits else _welcome(folder, fleet, earlier))
    asked = JoinRequest(name=name, node_key=key, request=request.request, asked=now, about=request.about)
    joining_file.write(folder, joining.tidied(now).with_request(asked))
    note = f"{name} was away and its certificate has ended ({request.about}): sojourn fleet accept {name}"
    return Answered(RequestNoted(name, ASK_AGAIN), "" if earlier and earlier.state == "waiting" else note)


def _shown_member(fleet: FleetFile, shown: Shown | None, key: str) -> FleetMember | Turned:
    """The member that showed its certificate, if that, and the key that signed, are its own and still count."""
    if shown is None:
        return Turned("this is asked with a certificate of the fleet only")
    member = fleet.members.get(shown.name)
    if member is None or member.revoked or shown.serial in fleet.revoked:
        return Turned(f"{shown.name} was revoked, or removed from the fleet")
    if member.node_key != key or shown.serial not in member.serials:
        return Turned(f"this is not the key, or not the certificate, that {shown.name} was let in with")
    return member


def _owner(fleet: FleetFile, key: str) -> str | None:
    return next((name for name, member in fleet.members.items() if member.node_key == key), None)


def _without_answered(joining: Joining, node_key: bytes) -> dict[str, JoinRequest]:
    """A member that comes with its certificate has got it: its request is done with."""
    key = encoded(node_key)
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


def _doubt(name: str) -> str:
    return (
        f"two devices seem to have the keys of {name}, as when a card is copied: an operator has to say which is it "
        f"(`sojourn fleet revoke {name}` and a new token for each, or `sojourn fleet accept {name}` if it is one)"
    )
