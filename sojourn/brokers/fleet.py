"""The fleet folder of a broker: authority, members, mosquitto's files, and bundles for new members."""

from __future__ import annotations

import datetime as dt
import fcntl
import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from sojourn import settings
from sojourn.brokers import configuration
from sojourn.brokers.acl import MemberRole, Members, acl_lines, retained_topics
from sojourn.brokers.certificates import Authority
from sojourn.brokers.configuration import Listeners, OptionalPort
from sojourn.errors import ConfigError
from sojourn.protocol.limits import Name
from sojourn.protocol.signing import Signer
from sojourn.protocol.topics import PREFIX, Prefix, check_name
from sojourn.settings import read_file
from sojourn.store.files import private_folder, write_private

# The files of a fleet folder:
#
# fleet.toml       the fleet's name, its broker's hosts, and its members
# ca.key, ca.pem   the authority that issues the certificates of the broker and of members
# release.key      the key that signs releases (only where the fleet was created; keep a copy elsewhere)
# broker/          mosquitto's files: mosquitto.conf, passwords, acl, certificates, crl.pem
# joining.json     invitations and requests to join (`sojourn.brokers.invitations`)
# coordinator/     the coordinator's settings, and the keys of devices that joined with their own keys
# old-ca.*         the previous authority, while members may still have its certificates

FLEET_FILE, CA_FILE, CA_KEY, RELEASE_KEY, BROKER = "fleet.toml", "ca.pem", "ca.key", "release.key", "broker"
DEFAULT_FOLDER = "/etc/sojourn/fleet"
COORDINATOR_GROUP = "sojourn-coordinator"
COORDINATOR = "coordinator"
NODE_KEYS = "node-keys.toml"
"""For the coordinator: the devices that must sign their results, and their keys."""
OPERATOR_KEYS = "operators.pub"
"""The public keys of operators that sign jobs, if any; devices receive them when they join."""
OLD_CA_FILE, OLD_CA_KEY = "old-ca.pem", "old-ca.key"
DOOR_PORT = 8885
Kind = Literal["password", "certificate"]


class FleetMember(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A member of a fleet and its credentials."""

    role: MemberRole
    kind: Kind
    added: str
    serial: str = ""
    """The serial number of its certificate, if it has one."""
    revoked: str = ""
    """The date of its revocation, if it was revoked."""
    node_key: str = ""
    """The public key with which it signs results, if it joined with its own key."""
    until: str = ""
    """The expiry of its newest certificate, if the door renews it."""
    authority: str = ""
    """The name of the authority that issued it."""
    former: dict[str, str] = {}
    """Earlier certificates that are still valid, and their expiry; the reply to a renewal may have been lost."""

    @property
    def serials(self) -> list[str]:
        """The serial numbers of the certificates with which it can connect."""
        return [serial for serial in (self.serial, *self.former) if serial]


class FleetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The file `fleet.toml`."""

    fleet: Name
    hosts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """The host names and addresses of the broker; members get the first one."""
    release_key: str = ""
    """The public key for releases."""
    revoked: dict[str, Name] = {}
    """The members whose certificates are revoked, by serial number."""
    listeners: Listeners = Listeners()
    door: OptionalPort = 0
    """The port of the door (`sojourn fleet door`), if it is not the default."""
    home_prefix: Prefix = PREFIX
    """Home Assistant's discovery prefix, if it has an account."""
    members: dict[Name, FleetMember] = {}

    @property
    def door_port(self) -> int:
        """The port of the door."""
        return self.door or DOOR_PORT

    @property
    def barred(self) -> list[str]:
        """Members without any permission: an open connection outlives its certificate and would continue."""
        gone = {name for name in self.revoked.values() if name not in self.members}
        return sorted(gone | {name for name, each in self.members.items() if each.revoked})

    def named(self, *roles: MemberRole) -> list[str]:
        """Return the members of these roles that can connect."""
        return [name for name, each in sorted(self.members.items()) if each.role in roles and not each.revoked]

    @property
    def node_keys(self) -> dict[str, str]:
        """The signing keys of devices that can connect, by name."""
        members = sorted(self.members.items())
        return {name: each.node_key for name, each in members if each.node_key and not each.revoked}

    @property
    def admitted(self) -> Members:
        """The members that have permissions at the broker, and the barred ones."""
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
    """A member's credentials, as files by name."""

    kind: Kind
    files: dict[str, bytes]


def create(folder: Path, fleet: FleetFile, *, signed_here: bool) -> None:
    """Create the folder of a fleet without members; with the release key if `signed_here`."""
    if (folder / FLEET_FILE).exists():
        raise ConfigError(f"{folder} already contains a fleet: choose another folder, or remove it to start over")
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
    issued = authority.issue_for_broker(list(dict.fromkeys((*fleet.hosts, "localhost", "127.0.0.1"))))
    for name, data in ((configuration.CERTIFICATE, issued.certificate), (configuration.KEY, issued.key)):
        write_private(folder / BROKER / name, data, group=configuration.GROUP)


def renew_broker(folder: Path, hosts: Sequence[str]) -> FleetFile:
    """Issue a new certificate for the broker, optionally with other host names."""
    fleet, hashes = read(folder), password_hashes(folder)
    fleet = msgspec.structs.replace(fleet, hosts=tuple(hosts) or fleet.hosts)
    _certify(folder, load_authority(folder), fleet)
    write(folder, fleet, hashes)
    return fleet


def read(folder: Path) -> FleetFile:
    """Read the fleet file of a folder."""
    path = folder / FLEET_FILE
    try:
        there = path.exists()
    except PermissionError:
        there = True
    if not there:
        raise ConfigError(f"{folder} contains no fleet: create one with `sojourn fleet init`, or set --fleet-folder")
    return read_file(path, FleetFile)


def password_hashes(folder: Path) -> dict[str, str]:
    """Read the hashes of the members' passwords."""
    try:
        text = (folder / BROKER / configuration.PASSWORDS).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
    return configuration.read_lines(text)


def load_authority(folder: Path) -> Authority:
    """Load the fleet's authority."""
    return _load_authority(folder / CA_FILE, folder / CA_KEY)


def load_old_authority(folder: Path) -> Authority | None:
    """Load the previous authority, or None unless certificates of both are accepted."""
    key = folder / OLD_CA_KEY
    return _load_authority(folder / OLD_CA_FILE, key) if key.exists() else None


def _load_authority(certificate: Path, key: Path) -> Authority:
    try:
        return Authority.load(certificate.read_bytes(), key.read_bytes())
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error


def write(folder: Path, fleet: FleetFile, hashes: dict[str, str], cleared: Sequence[str] = ()) -> None:
    """Write mosquitto's files, then the fleet file, so that every listed member can connect.

    `CLEANER` can empty the `cleared` topics until the next write (`sojourn.brokers.maintenance`).
    """
    broker = folder / BROKER
    members = fleet.admitted
    known = {name: hashes[name] for name in sorted(hashes) if name in fleet.members and name not in members.barred}
    texts: dict[str, str | bytes] = {
        configuration.PASSWORDS: configuration.lines(known),
        configuration.ACL: acl_lines(fleet.fleet, members, cleared),
        configuration.REVOKED: _revocations(folder, fleet),
        configuration.CONF: configuration.fleet_conf(broker.resolve(), fleet.listeners, len(members.devices)),
    }
    for name, text in texts.items():
        write_private(broker / name, text, group=configuration.GROUP)
    _write_node_keys(folder, fleet)
    write_private(folder / FLEET_FILE, settings.dumps(msgspec.to_builtins(fleet)))


def _revocations(folder: Path, fleet: FleetFile) -> bytes:
    """Return a list for each accepted authority: mosquitto rejects certificates of an authority without a list."""
    both = [load_authority(folder), load_old_authority(folder)]
    return b"".join(each.revocation_list(list(fleet.revoked)) for each in both if each)


def _write_node_keys(folder: Path, fleet: FleetFile) -> None:
    """Write the devices' signing keys for the coordinator next to this folder; a site's broker has no coordinator.

    Keys that were added by hand for other sites are kept: those of names that are not and were not members here.
    """
    path = folder / COORDINATOR / NODE_KEYS
    if not path.parent.is_dir() or not (fleet.node_keys or path.exists()):
        return
    before = read(folder).members if (folder / FLEET_FILE).exists() else {}
    listed = read_file(path, dict[str, dict[str, str]]).get("keys", {}) if path.exists() else {}
    added = {name: key for name, key in listed.items() if name not in before and name not in fleet.members}
    write_private(path, settings.dumps({"keys": {**fleet.node_keys, **added}}), group=COORDINATOR_GROUP)


def admit(
    folder: Path, name: str, role: MemberRole, kind: Kind, *, renew: bool = False, home_prefix: str | None = None
) -> tuple[FleetFile, Secret]:
    """Add a member, or renew its credentials and revoke the old ones; return them.

    home_prefix: Home Assistant's new discovery prefix; None keeps the current one.
    """
    check_name(name, role)
    fleet, hashes = read(folder), password_hashes(folder)
    fleet = msgspec.structs.replace(fleet, home_prefix=home_prefix or fleet.home_prefix)
    old = fleet.members.get(name)
    if old is not None and not renew:
        raise ConfigError(f"{name!r} is already a member: --renew issues new credentials and revokes the old ones")
    if old is not None and old.role != role:
        raise ConfigError(f"{name!r} is already a member as {old.role}: names are unique in a fleet")
    serial, files = "", {}
    if kind == "password":
        password = configuration.new_password()
        hashes[name] = configuration.hashed(password)
        files = {"password": f"{password}\n".encode()}
    else:
        hashes.pop(name, None)
        issued = load_authority(folder).issue_for_node(name)
        serial, files = issued.serial, {"pem": issued.certificate, "key": issued.key}
    member = FleetMember(role=role, kind=kind, added=_today(), serial=serial)
    fleet = msgspec.structs.replace(
        fleet, members={**fleet.members, name: member}, revoked=_with_revoked(fleet.revoked, name, old)
    )
    write(folder, fleet, hashes)
    return fleet, Secret(kind, files)


def revoke(folder: Path, name: str) -> list[str]:
    """Revoke a member, which stays listed under its name; return the topics to clear."""
    fleet = read(folder)
    old = _member(fleet, name)
    if not old.revoked:
        members = {**fleet.members, name: msgspec.structs.replace(old, revoked=_today())}
        fleet = msgspec.structs.replace(fleet, members=members)
    return _write_without(folder, fleet, name, old)


def remove(folder: Path, name: str) -> list[str]:
    """Remove a member, revoke its credentials, and free its name; return the topics to clear."""
    fleet = read(folder)
    old = _member(fleet, name)
    members = {key: each for key, each in fleet.members.items() if key != name}
    return _write_without(folder, msgspec.structs.replace(fleet, members=members), name, old)


def _write_without(folder: Path, fleet: FleetFile, name: str, old: FleetMember) -> list[str]:
    """Write the fleet with a member's credentials revoked; return the topics that may have retained messages of it."""
    fleet = msgspec.structs.replace(fleet, revoked=_with_revoked(fleet.revoked, name, old))
    retained = retained_topics(fleet.fleet, name, old.role, fleet.admitted)
    write(folder, fleet, password_hashes(folder), retained)
    return retained


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}: create a fleet with `sojourn fleet init`") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _member(fleet: FleetFile, name: str) -> FleetMember:
    if name not in fleet.members:
        raise ConfigError(f"{name!r} is not a member of {fleet.fleet}: `sojourn fleet list` shows the members")
    return fleet.members[name]


def _with_revoked(revoked: dict[str, str], name: str, old: FleetMember | None) -> dict[str, str]:
    return {**revoked, **dict.fromkeys(old.serials, name)} if old is not None else revoked


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


MAX_BUNDLE = 1 << 20
"""Maximum total bytes of a bundle: settings, credentials and public keys need far less."""
_PLAIN = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


def write_bundle(path: Path, files: Mapping[str, bytes]) -> None:
    """Pack these files into a bundle that only its owner can read."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    write_private(path, made.getvalue())


def read_bundle(path: Path) -> dict[str, bytes]:
    """Read the files of a bundle, which must be regular files without folders."""
    files: dict[str, bytes] = {}
    room = MAX_BUNDLE
    try:
        with tarfile.open(path, "r:gz") as tar:
            for entry in tar:
                room -= entry.size
                if not entry.isfile() or not _PLAIN.fullmatch(entry.name) or room < 0:
                    raise ConfigError(f"{path} is not a Sojourn bundle: it contains {entry.name[:100]!r}")
                content = tar.extractfile(entry)
                files[entry.name] = content.read() if content else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} is not a complete bundle: {error}") from error
    return files
