"""Letting devices join: invitations, and the operator's answers to those who ask.

Whoever calls has the folder to itself (`sojourn.brokers.fleet.alone`).
"""

from __future__ import annotations

import base64
import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from sojourn.brokers import fleet as folders
from sojourn.brokers import joining_file
from sojourn.brokers.fleet import FleetMember
from sojourn.brokers.joining_file import MOST_INVITATIONS, MOST_USES, Invitation
from sojourn.errors import ConfigError
from sojourn.joining.asking import fingerprint
from sojourn.joining.token import Token, invitation_id, new_secret
from sojourn.protocol.topics import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cryptography import x509

    from sojourn.brokers.fleet import FleetFile
    from sojourn.brokers.joining_file import Joining, JoinRequest

MOST_FORMER = 8
"""Certificates of one member that are good at the same time: who asks for more has to wait."""


def invite(folder: Path, invitation: Invitation, now: float) -> Token:
    """Make an invitation; the token is all that ever has its secret."""
    fleet = folders.read(folder)
    joining = joining_file.read(folder).tidied(now)
    if not 1 <= invitation.uses <= MOST_USES:
        raise ConfigError(f"--count: 1 to {MOST_USES} devices may join with one token")
    if invitation.name and invitation.name in fleet.members and not invitation.replaces:
        raise ConfigError(f"{invitation.name!r} is a member already: --replace ends its keys when the new ones come")
    for name in filter(None, (invitation.name, invitation.prefix)):
        check_name(name)
    if sum(each.ends > now and each.uses > 0 for each in joining.invitations.values()) >= MOST_INVITATIONS:
        raise ConfigError(f"{MOST_INVITATIONS} invitations are open: let some end, or `sojourn fleet uninvite`")
    secret = new_secret()
    joining_file.write(folder, joining.with_invitation(invitation_id(secret), invitation))
    return Token(fleet.hosts[0], fleet.door_port, fingerprint(_vouching(folder)), secret)


def uninvite(folder: Path) -> int:
    """End all invitations; returns how many could still be used."""
    joining = joining_file.read(folder)
    open_ones = sum(each.uses > 0 for each in joining.invitations.values())
    joining_file.write(folder, msgspec.structs.replace(joining, invitations={}))
    return open_ones


def _vouching(folder: Path) -> x509.Certificate:
    """The authority that the broker's own certificate is of: while one is replaced, still the old one."""
    return (folders.old_authority_of(folder) or folders.authority_of(folder)).known_as


def accept(folder: Path, names: Sequence[str] | None, now: float) -> list[str]:
    """Let those in who ask under these names, or all; returns whom. One write, however many they are."""
    joining = joining_file.read(folder).tidied(now)
    chosen = _chosen(joining, names, doubted=True)
    fleet = folders.read(folder)
    for request in chosen:
        fleet, answered = vouched(folder, fleet, request, now)
        joining = (joining if request.returns else joining.unseen(request.name)).with_request(answered)
    for name in names or ():  # an operator says that it is one device: its next visit decides with what stamp
        if name in joining.seen and joining.seen[name].doubted:
            joining = joining.unseen(name)
    if chosen:
        folders.write(folder, fleet, folders.hashes_of(folder))
    joining_file.write(folder, joining)
    return [request.name for request in chosen] if names is None else list(names)


def reject(folder: Path, names: Sequence[str] | None, now: float) -> list[str]:
    """Turn those away who ask under these names; returns whom."""
    joining = joining_file.read(folder).tidied(now)
    chosen = _chosen(joining, names, doubted=False)
    for request in chosen:
        joining = joining.with_request(msgspec.structs.replace(request, state="rejected", answered=now))
    joining_file.write(folder, joining)
    return [request.name for request in chosen]


def forget(folder: Path, name: str) -> None:
    """Keep nothing of a member that was revoked or removed."""
    joining = joining_file.read(folder)
    if (smaller := joining.without(name)) != joining:
        joining_file.write(folder, smaller)


def vouched(folder: Path, fleet: FleetFile, request: JoinRequest, now: float) -> tuple[FleetFile, JoinRequest]:
    """The fleet with who asked as a member, and the request with its certificate; nothing is written yet."""
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    authority = folders.authority_of(folder)
    issued = authority.for_request(request.request, request.name, request.node_key, moment)
    until = issued.until.isoformat(timespec="seconds")
    old = fleet.members.get(request.name)
    revoked = dict(fleet.revoked)
    if old is not None and old.node_key == request.node_key:
        former = still_good(old, now)
        member = msgspec.structs.replace(
            old, serial=issued.serial, until=until, authority=authority.name, former=former
        )
    else:  # a new device, or one that takes the place of another: what that had ends
        revoked |= dict.fromkeys(old.serials if old else (), request.name)
        member = FleetMember(
            role="device", kind="certificate", added=moment.date().isoformat(), serial=issued.serial,
            node_key=request.node_key, until=until, authority=authority.name,
        )  # fmt: skip
    fleet = msgspec.structs.replace(fleet, members={**fleet.members, request.name: member}, revoked=revoked)
    answered = msgspec.structs.replace(request, state="accepted", answered=now, certificate=issued.certificate.decode())
    return fleet, answered


def still_good(member: FleetMember, now: float) -> dict[str, str]:
    """The certificates of a member that have not ended, and when they do."""
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    known = {**member.former, member.serial: member.until}
    return {serial: until for serial, until in known.items() if until and dt.datetime.fromisoformat(until) > moment}


def free_name(wanted: str, taken: Iterable[str], *, numbered: bool) -> str:
    """The name that is asked for, with a number behind it if it is taken or is to have one."""
    known = set(taken)
    if not numbered and wanted not in known:
        return wanted
    number = 1 if numbered else 2
    while (name := f"{wanted[:57]}-{number}") in known:
        number += 1
    return name


def encoded(node_key: bytes) -> str:
    """A public key as it stands in files."""
    return base64.b64encode(node_key).decode()


def _chosen(joining: Joining, names: Sequence[str] | None, *, doubted: bool) -> list[JoinRequest]:
    waiting = {request.name: request for request in joining.waiting}
    if names is None:
        return list(waiting.values())
    others = {name for name, each in joining.seen.items() if each.doubted} if doubted else set()
    if missing := [name for name in names if name not in waiting and name not in others]:
        raise ConfigError(f"nobody asks as {', '.join(missing)}: `sojourn fleet requests` shows who does")
    return [waiting[name] for name in names if name in waiting]
