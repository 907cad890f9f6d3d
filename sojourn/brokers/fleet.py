"""Who may connect to one broker of a fleet: a folder with its authority, its members, and the files mosquitto reads.

fleet.toml       the fleet's name, where its broker is, who its members are
ca.key, ca.pem   the authority that vouches for the broker, and for members that have certificates
release.key      the key that signs releases (only where the fleet began; keep a copy elsewhere)
broker/          what mosquitto reads: mosquitto.conf, passwords, acl, certificates, crl.pem
joining.json     invitations, and who asks to join (`sojourn.brokers.joining_file`)
coordinator/     the coordinator's settings, and the keys of the devices that have joined with some of their own
old-ca.*         the authority before this one, while members may still have certificates of it
"""

from __future__ import annotations

import datetime as dt
import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec

from sojourn import toml
from sojourn.brokers import configuration, passwords
from sojourn.brokers.acl import MemberRole, Members, acl_lines, left_behind
from sojourn.brokers.certificates import Authority
from sojourn.brokers.configuration import Listeners, OptionalPort
from sojourn.errors import ConfigError
from sojourn.protocol.home_topics import PREFIX, Prefix
from sojourn.protocol.limits import Name
from sojourn.protocol.signing import Signer
from sojourn.protocol.topics import check_name
from sojourn.settings import read_file
from sojourn.store.files import private_folder, write_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FLEET_FILE, CA_FILE, CA_KEY, RELEASE_KEY, BROKER = "fleet.toml", "ca.pem", "ca.key", "release.key", "broker"
DEFAULT_FOLDER = "/etc/sojourn/fleet"
COORDINATOR_GROUP = "sojourn-coordinator"
COORDINATOR = "coordinator"
NODE_KEYS = "node-keys.toml"
"""For the coordinator: whose results must be signed, and with which keys."""
OPERATOR_KEYS = "operators.pub"
"""The keys of those who may sign jobs, where somebody does: devices are given them."""
OLD_CA_FILE, OLD_CA_KEY = "old-ca.pem", "old-ca.key"
DOOR_PORT = 8885
Kind = Literal["password", "certificate"]


class FleetMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Who may connect, and with what."""

    role: MemberRole
    kind: Kind
    added: str
    serial: str = ""
    """Of the certificate, if it has one."""
    revoked: str = ""
    """Since when it may no longer connect."""
    node_key: str = ""
    """The public half of its own key, if it joined with one: it signs its results with that."""
    until: str = ""
    """When the newest of its certificates ends, where they are renewed at the door."""
    authority: str = ""
    """Which authority has vouched for that, by its name."""
    former: dict[str, str] = {}
    """Earlier certificates that have not ended yet, and when they do: a renewal's answer may be lost on its way."""

    @property
    def serials(self) -> list[str]:
        """The certificates with which it can connect."""
        return [serial for serial in (self.serial, *self.former) if serial]


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The file `fleet.toml`."""

    fleet: Name
    hosts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """Under which names the broker is reached; members are told the first."""
    release_key: str = ""
    """The public key of those who sign releases."""
    revoked: dict[str, Name] = {}
    """Whose certificates are no longer valid, by their serial numbers."""
    listeners: Listeners = Listeners()
    door: OptionalPort = 0
    """Where devices ask to join, if it is not the usual port (`sojourn fleet door`)."""
    home_prefix: Prefix = PREFIX
    """Where Home Assistant looks for devices, where it has an account."""
    members: dict[Name, FleetMember] = {}

    @property
    def door_port(self) -> int:
        """Where devices ask to join."""
        return self.door or DOOR_PORT

    @property
    def barred(self) -> list[str]:
        """Who may say nothing: a connection that stands outlives its certificate, and would go on."""
        gone = {name for name in self.revoked.values() if name not in self.members}
        return sorted(gone | {name for name, each in self.members.items() if each.revoked})

    def named(self, *roles: MemberRole) -> list[str]:
        """The members of these roles that may connect."""
        return [name for name, each in sorted(self.members.items()) if each.role in roles and not each.revoked]

    @property
    def node_keys(self) -> dict[str, str]:
        """The keys with which devices that may connect sign, by their names."""
        members = sorted(self.members.items())
        return {name: each.node_key for name, each in members if each.node_key and not each.revoked}

    @property
    def admitted(self) -> Members:
        """Who may speak at the broker, and who may no longer."""
        return Members(
            devices=tuple(self.named("device")),
            edges=tuple(self.named("edge")),
            clouds=tuple(self.named("cloud")),
            operators=tuple(self.named("operator")),
            barred=tuple(self.barred),
            homes=tuple(self.named("home-assistant")),
            home_prefix=self.home_prefix,
        )


class Secret(NamedTuple):
    """What a member needs to connect, by the names of its files."""

    kind: Kind
    files: dict[str, bytes]


def create(folder: Path, fleet: FleetFile, *, signed_here: bool) -> None:
    """Make the folder of a fleet without members; with the key that signs its releases, if it is kept here."""
    if (folder / FLEET_FILE).exists():
        raise ConfigError(f"{folder} holds a fleet already: name another folder, or remove it to begin anew")
    authority = Authority.create(f"{fleet.fleet} authority")
    private_folder(folder, passable=True)
    private_folder(folder / BROKER, group=configuration.GROUP)
    _certify(folder, authority, fleet)
    write_private(folder / CA_KEY, authority.key)
    write_private(folder / CA_FILE, authority.certificate)
    write_private(folder / BROKER / configuration.CA, authority.certificate, group=configuration.GROUP)
    if signed_here:
        key = folder / RELEASE_KEY
        signer = Signer.load(key) if key.exists() else Signer.generate(key)
        fleet = msgspec.structs.replace(fleet, release_key=signer.public)
    write(folder, fleet, {})


def _certify(folder: Path, authority: Authority, fleet: FleetFile) -> None:
    issued = authority.for_broker(list(dict.fromkeys((*fleet.hosts, "localhost", "127.0.0.1"))))
    for name, data in ((configuration.CERTIFICATE, issued.certificate), (configuration.KEY, issued.key)):
        write_private(folder / BROKER / name, data, group=configuration.GROUP)


def renew_broker(folder: Path, hosts: Sequence[str]) -> FleetFile:
    """A new certificate for the broker, under other names if they are given."""
    fleet, hashes = read(folder), hashes_of(folder)
    fleet = msgspec.structs.replace(fleet, hosts=tuple(hosts) or fleet.hosts)
    _certify(folder, authority_of(folder), fleet)
    write(folder, fleet, hashes)
    return fleet


def read(folder: Path) -> FleetFile:
    """What the folder says of the fleet."""
    path = folder / FLEET_FILE
    try:
        there = path.exists()
    except PermissionError:
        there = True
    if not there:
        raise ConfigError(f"{folder} holds no fleet: make one with `sojourn fleet init`, or name its --fleet-folder")
    return read_file(path, FleetFile)


def hashes_of(folder: Path) -> dict[str, str]:
    """The hashes of the members' passwords."""
    try:
        text = (folder / BROKER / configuration.PASSWORDS).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
    return passwords.read_lines(text)


def authority_of(folder: Path) -> Authority:
    """The fleet's authority."""
    try:
        return Authority.load((folder / CA_FILE).read_bytes(), (folder / CA_KEY).read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error


def old_authority_of(folder: Path) -> Authority | None:
    """The authority before this one, while certificates of both are taken."""
    if not (folder / OLD_CA_KEY).exists():
        return None
    try:
        return Authority.load((folder / OLD_CA_FILE).read_bytes(), (folder / OLD_CA_KEY).read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error


def write(folder: Path, fleet: FleetFile, hashes: dict[str, str], cleared: Sequence[str] = ()) -> None:
    """Write what mosquitto reads, then the fleet file: who is listed there can connect, and who is not cannot.

    The `cleared` topics may be emptied until it is written again (`sojourn.brokers.clearing`).
    """
    broker = folder / BROKER
    members = fleet.admitted
    known = {name: hashes[name] for name in sorted(hashes) if name in fleet.members and name not in members.barred}
    texts: dict[str, str | bytes] = {
        configuration.PASSWORDS: passwords.lines(known),
        configuration.ACL: acl_lines(fleet.fleet, members, cleared),
        configuration.REVOKED: _revocations(folder, fleet),
        configuration.CONF: configuration.fleet_conf(broker.resolve(), fleet.listeners, len(members.devices)),
    }
    for name, text in texts.items():
        write_private(broker / name, text, group=configuration.GROUP)
    _write_node_keys(folder, fleet)
    write_private(folder / FLEET_FILE, toml.dumps(msgspec.to_builtins(fleet)))


def _revocations(folder: Path, fleet: FleetFile) -> bytes:
    """One list for each authority whose certificates are taken: mosquitto refuses those of one without a list."""
    both = [authority_of(folder), old_authority_of(folder)]
    return b"".join(each.revoked(list(fleet.revoked)) for each in both if each)


def _write_node_keys(folder: Path, fleet: FleetFile) -> None:
    """Tell the coordinator beside this folder who signs with what; a site's own broker has none.

    Keys of other sites, which a person has added, stay: those of names that this folder has not had until now either.
    """
    path = folder / COORDINATOR / NODE_KEYS
    if not path.parent.is_dir() or not (fleet.node_keys or path.exists()):
        return
    before = read(folder).members if (folder / FLEET_FILE).exists() else {}
    listed = read_file(path, dict[str, dict[str, str]]).get("keys", {}) if path.exists() else {}
    added = {name: key for name, key in listed.items() if name not in before and name not in fleet.members}
    write_private(path, toml.dumps({"keys": {**fleet.node_keys, **added}}), group=COORDINATOR_GROUP)


def admit(
    folder: Path, name: str, role: MemberRole, kind: Kind, *, renew: bool = False, home_prefix: str | None = None
) -> tuple[FleetFile, Secret]:
    """Make a member, or new credentials for one; the old ones end. Returns what it needs to connect.

    home_prefix: where Home Assistant looks for devices from now on; None for where it did.
    """
    check_name(name, role)
    fleet, hashes = read(folder), hashes_of(folder)
    fleet = msgspec.structs.replace(fleet, home_prefix=home_prefix or fleet.home_prefix)
    old = fleet.members.get(name)
    if old is not None and not renew:
        raise ConfigError(f"{name!r} is a member already: --renew makes new credentials and ends the old ones")
    if old is not None and old.role != role:
        raise ConfigError(f"{name!r} is a member as {old.role}: names are unique in a fleet")
    serial, files = "", {}
    if kind == "password":
        password = passwords.new_password()
        hashes[name] = passwords.hashed(password)
        files = {"password": f"{password}\n".encode()}
    else:
        hashes.pop(name, None)
        issued = authority_of(folder).for_node(name)
        serial, files = issued.serial, {"pem": issued.certificate, "key": issued.key}
    member = FleetMember(role=role, kind=kind, added=_today(), serial=serial)
    fleet = msgspec.structs.replace(
        fleet, members={**fleet.members, name: member}, revoked=_with_serial(fleet.revoked, name, old)
    )
    write(folder, fleet, hashes)
    return fleet, Secret(kind, files)


def revoke(folder: Path, name: str) -> list[str]:
    """Let a member connect no more; it stays listed, and its name taken. Returns the topics to clear."""
    fleet = read(folder)
    old = _member(fleet, name)
    if not old.revoked:
        members = {**fleet.members, name: msgspec.structs.replace(old, revoked=_today())}
        fleet = msgspec.structs.replace(fleet, members=members)
    return _without(folder, fleet, name, old)


def remove(folder: Path, name: str) -> list[str]:
    """Forget a member; its credentials end too, and its name is free. Returns the topics to clear."""
    fleet = read(folder)
    old = _member(fleet, name)
    members = {key: each for key, each in fleet.members.items() if key != name}
    return _without(folder, msgspec.structs.replace(fleet, members=members), name, old)


def _without(folder: Path, fleet: FleetFile, name: str, old: FleetMember) -> list[str]:
    """Write the fleet in which a member's credentials have ended; returns where the broker may keep something of it."""
    fleet = msgspec.structs.replace(fleet, revoked=_with_serial(fleet.revoked, name, old))
    left = left_behind(fleet.fleet, name, old.role, fleet.admitted)
    write(folder, fleet, hashes_of(folder), left)
    return left


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep others from changing the folder in the meantime."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}: make a fleet with `sojourn fleet init`") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _member(fleet: FleetFile, name: str) -> FleetMember:
    if name not in fleet.members:
        raise ConfigError(f"{name!r} is not a member of {fleet.fleet}: `sojourn fleet list` shows who is")
    return fleet.members[name]


def _with_serial(revoked: dict[str, str], name: str, old: FleetMember | None) -> dict[str, str]:
    return {**revoked, **dict.fromkeys(old.serials, name)} if old is not None else revoked


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()
