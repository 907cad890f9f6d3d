"""Invitations and requests to join a fleet: their file, and the decisions of operators."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sojourn.brokers import fleet as folders
from sojourn.brokers.fleet import FleetFile, FleetMember
from sojourn.errors import ConfigError
from sojourn.joining.client import fingerprint
from sojourn.joining.messages import Token, invitation_id, new_secret
from sojourn.protocol.limits import Label, Moment, Name
from sojourn.protocol.topics import check_name
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from cryptography import x509


# The joining file has the invitations, the requests, and the members' last contacts with the door. Its size is bounded
# by operators: every request needs an invitation, or the signature of a member.

JOINING_FILE = "joining.json"
MAX_INVITATIONS = 200
"""Maximum open invitations."""
MAX_USES = 1_000
"""Maximum devices for one invitation."""
RETENTION_SECONDS = 7 * 86_400.0
"""How long a decided request or an expired invitation is kept, because the device may be switched off."""


class Invitation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An issued token: which devices can join with it, and until when."""

    made: Moment
    ends: Moment
    uses: int
    """How many more devices can use it."""
    name: str = ""
    """The name of its only device, if set."""
    prefix: str = ""
    """The prefix of its devices' numbered names, if set."""
    authorised: bool = False
    """Whether its devices are accepted without an operator."""
    replaces: bool = False
    """Whether the device replaces a member of the same name, whose keys are then revoked."""
    data: str = ""
    """The data path of its devices."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's request to join, and its state."""

    name: Name
    node_key: str
    request: bytes
    """The certificate signing request."""
    asked: Moment
    about: Label
    invitation: str = ""
    """The id of the invitation; empty for a member whose certificate has expired."""
    replaces: bool = False
    data: str = ""
    state: Literal["waiting", "accepted", "rejected"] = "waiting"
    answered: Moment = 0.0
    certificate: str = ""

    @property
    def returns(self) -> bool:
        """Whether it is from a member whose certificate has expired."""
        return not self.invitation


class LastSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stamp of a member's next contact with the door; `cloned`: since when two devices seem to have its keys."""

    stamp: bytes
    at: Moment
    cloned: str = ""


class Joining(msgspec.Struct, frozen=True):
    """The file `joining.json`."""

    invitations: dict[str, Invitation] = {}
    """Invitations by `invitation_id`; their secrets are not stored."""
    requests: dict[str, JoinRequest] = {}
    """Requests by the public key of the node."""
    seen: dict[Name, LastSeen] = {}
    """Last contacts by member name."""

    @property
    def waiting(self) -> list[JoinRequest]:
        """The requests that wait for an operator, oldest first."""
        return [each for each in self.requests.values() if each.state == "waiting"]

    def with_request(self, request: JoinRequest) -> Joining:
        """Return a copy with a request, which replaces an earlier one of the same key."""
        return msgspec.structs.replace(self, requests={**self.requests, request.node_key: request})

    def with_invitation(self, known: str, invitation: Invitation) -> Joining:
        """Return a copy with a new or changed invitation."""
        return msgspec.structs.replace(self, invitations={**self.invitations, known: invitation})

    def with_seen(self, name: str, seen: LastSeen) -> Joining:
        """Return a copy with a member's last contact."""
        return msgspec.structs.replace(self, seen={**self.seen, name: seen})

    def without_stamp(self, name: str) -> Joining:
        """Return a copy without a member's stamp; its next contact sets a new one."""
        return msgspec.structs.replace(self, seen={key: each for key, each in self.seen.items() if key != name})

    def without(self, name: str) -> Joining:
        """Return a copy without all data of a revoked or removed member."""
        requests = {key: each for key, each in self.requests.items() if each.name != name}
        return msgspec.structs.replace(self.without_stamp(name), requests=requests)

    def without_expired(self, now: float) -> Joining:
        """Return a copy without expired invitations and old decided requests."""
        past = now - RETENTION_SECONDS
        return msgspec.structs.replace(
            self,
            invitations={key: each for key, each in self.invitations.items() if each.ends > past},
            requests={
                key: each for key, each in self.requests.items() if each.state == "waiting" or each.answered > past
            },
        )


def read(folder: Path) -> Joining:
    """Read the joining file of a fleet folder; empty if it does not exist."""
    path = folder / JOINING_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Joining)
    except FileNotFoundError:
        return Joining()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is damaged ({error}): move it away and create new invitations") from error


def write(folder: Path, joining: Joining) -> None:
    """Write the joining file atomically."""
    write_private(folder / JOINING_FILE, msgspec.json.encode(joining))


# The following functions require that the caller has locked the folder (`sojourn.brokers.fleet.locked`).

MAX_VALID_CERTIFICATES = 8
"""Maximum valid certificates of a member at a time; further renewals have to wait."""


def invite(folder: Path, invitation: Invitation, now: float) -> Token:
    """Create an invitation; only the returned token contains its secret."""
    fleet = folders.read(folder)
    joining = read(folder).without_expired(now)
    if not 1 <= invitation.uses <= MAX_USES:
        raise ConfigError(f"--count must be from 1 to {MAX_USES}")
    if invitation.name and invitation.name in fleet.members and not invitation.replaces:
        raise ConfigError(
            f"{invitation.name!r} is already a member: --replace revokes its keys when the new device joins"
        )
    for name in filter(None, (invitation.name, invitation.prefix)):
        check_name(name)
    if sum(each.ends > now and each.uses > 0 for each in joining.invitations.values()) >= MAX_INVITATIONS:
        raise ConfigError(
            f"{MAX_INVITATIONS} invitations are open: wait until some expire, or cancel them with `sojourn fleet "
            "uninvite`"
        )
    secret = new_secret()
    write(folder, joining.with_invitation(invitation_id(secret), invitation))
    return Token(fleet.hosts[0], fleet.door_port, fingerprint(_broker_authority(folder)), secret)


def uninvite(folder: Path) -> int:
    """Cancel all invitations; return how many were still usable."""
    joining = read(folder)
    open_ones = sum(each.uses > 0 for each in joining.invitations.values())
    write(folder, msgspec.structs.replace(joining, invitations={}))
    return open_ones


def _broker_authority(folder: Path) -> x509.Certificate:
    """Return the authority that issued the broker's certificate: during a replacement, still the old one."""
    return (folders.load_old_authority(folder) or folders.load_authority(folder)).own_certificate


def accept(folder: Path, names: Sequence[str] | None, now: float) -> list[str]:
    """Accept the requests with these names, or all, in one write; return the names."""
    joining = read(folder).without_expired(now)
    chosen = _select_requests(joining, names, cloned=True)
    fleet = folders.read(folder)
    for request in chosen:
        fleet, answered = admit_request(folder, fleet, request, now)
        joining = (joining if request.returns else joining.without_stamp(request.name)).with_request(answered)
    for name in names or ():  # an operator confirms that it is one device: its next contact sets the stamp
        if name in joining.seen and joining.seen[name].cloned:
            joining = joining.without_stamp(name)
    if chosen:
        folders.write(folder, fleet, folders.password_hashes(folder))
    write(folder, joining)
    return [request.name for request in chosen] if names is None else list(names)


def reject(folder: Path, names: Sequence[str] | None, now: float) -> list[str]:
    """Reject the requests with these names; return the names."""
    joining = read(folder).without_expired(now)
    chosen = _select_requests(joining, names, cloned=False)
    for request in chosen:
        joining = joining.with_request(msgspec.structs.replace(request, state="rejected", answered=now))
    write(folder, joining)
    return [request.name for request in chosen]


def forget(folder: Path, name: str) -> None:
    """Delete the data of a revoked or removed member."""
    joining = read(folder)
    if (smaller := joining.without(name)) != joining:
        write(folder, smaller)


def admit_request(folder: Path, fleet: FleetFile, request: JoinRequest, now: float) -> tuple[FleetFile, JoinRequest]:
    """Return the fleet with the new member, and the request with its certificate, without writing them."""
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    authority = folders.load_authority(folder)
    issued = authority.sign_request(request.request, request.name, request.node_key, moment)
    until = issued.until.isoformat(timespec="seconds")
    old = fleet.members.get(request.name)
    revoked = dict(fleet.revoked)
    if old is not None and old.node_key == request.node_key:
        former = valid_certificates(old, now)
        member = msgspec.structs.replace(
            old, serial=issued.serial, until=until, authority=authority.name, former=former
        )
    else:  # a new device, or one that replaces another, whose certificates are revoked
        revoked |= dict.fromkeys(old.serials if old else (), request.name)
        member = FleetMember(
            role="device", kind="certificate", added=moment.date().isoformat(), serial=issued.serial,
            node_key=request.node_key, until=until, authority=authority.name,
        )  # fmt: skip
    fleet = msgspec.structs.replace(fleet, members={**fleet.members, request.name: member}, revoked=revoked)
    answered = msgspec.structs.replace(request, state="accepted", answered=now, certificate=issued.certificate.decode())
    return fleet, answered


def valid_certificates(member: FleetMember, now: float) -> dict[str, str]:
    """Return the valid certificates of a member, and their expiry."""
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    known = {**member.former, member.serial: member.until}
    return {serial: until for serial, until in known.items() if until and dt.datetime.fromisoformat(until) > moment}


def unique_name(wanted: str, taken: Iterable[str], *, numbered: bool) -> str:
    """Return the wanted name, with a number appended if it is taken or `numbered` is set."""
    known = set(taken)
    if not numbered and wanted not in known:
        return wanted
    number = 1 if numbered else 2
    while (name := f"{wanted[:57]}-{number}") in known:
        number += 1
    return name


def encode_key(node_key: bytes) -> str:
    """Encode a public key for files."""
    return base64.b64encode(node_key).decode()


def _select_requests(joining: Joining, names: Sequence[str] | None, *, cloned: bool) -> list[JoinRequest]:
    waiting = {request.name: request for request in joining.waiting}
    if names is None:
        return list(waiting.values())
    others = {name for name, each in joining.seen.items() if each.cloned} if cloned else set()
    if missing := [name for name in names if name not in waiting and name not in others]:
        raise ConfigError(f"no request from {', '.join(missing)}: `sojourn fleet requests` lists the requests")
    return [waiting[name] for name in names if name in waiting]
