"""Maintenance of a broker: replace its authority, reload its files, and clear messages of removed members."""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import shlex
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from sojourn.brokers import configuration
from sojourn.brokers import fleet as folders
from sojourn.brokers.acl import CLEANER
from sojourn.brokers.certificates import Authority
from sojourn.brokers.fleet import CA_FILE, DEFAULT_FOLDER, load_authority, read
from sojourn.errors import ConfigError, LinkError
from sojourn.store.files import write_private

# A fleet's authority is replaced at once, or with an overlap in which certificates of both authorities are valid.
#
# During the overlap, the broker and the door still present certificates of the old authority, which every member
# trusts. Members that contact the door, and new members, trust both authorities and get certificates of the new one. At
# the end, the broker and the door present certificates of the new authority, and the old one is no longer valid.

_NUMBER = re.compile(r".* authority(?: (\d+))?")


class OutdatedMembers(NamedTuple):
    """Members without a certificate of the new authority: those that renew at the door, and those that need bundles."""

    joined: list[str]
    bundled: list[str]


def begin(folder: Path) -> OutdatedMembers:
    """Create a new authority next to the old one; return the members that need new certificates."""
    if folders.load_old_authority(folder) is not None:
        raise ConfigError("the authority is already being replaced: --finish completes it")
    old, fleet = folders.load_authority(folder), folders.read(folder)
    new = Authority.create(_next_name(fleet.fleet, old))
    write_private(folder / folders.OLD_CA_FILE, old.certificate)
    write_private(folder / folders.OLD_CA_KEY, old.key)
    _install(folder, new, [new, old])
    folders.write(folder, fleet, folders.password_hashes(folder))
    return _outdated_members(folder)


def finish(folder: Path, *, at_once: bool = False) -> OutdatedMembers:
    """Complete the replacement; return the members that can no longer connect.

    at_once: without an overlap, for a compromised key: all members have to join again.
    """
    fleet = folders.read(folder)
    if at_once:
        old = folders.load_authority(folder)
        new = Authority.create(_next_name(fleet.fleet, old))
    elif folders.load_old_authority(folder) is None:
        raise ConfigError("the authority is not being replaced: start with `sojourn fleet replace-authority`")
    else:
        new = folders.load_authority(folder)
    behind = _outdated_members(folder, all_members=at_once)
    for name in (folders.OLD_CA_KEY, folders.OLD_CA_FILE):
        (folder / name).unlink(missing_ok=True)
    _install(folder, new, [new])
    folders.renew_broker(folder, [])
    return behind


def _install(folder: Path, authority: Authority, trusted: list[Authority]) -> None:
    certificates = b"".join(each.certificate for each in trusted)
    write_private(folder / folders.CA_KEY, authority.key)
    write_private(folder / folders.CA_FILE, certificates)
    write_private(folder / folders.BROKER / configuration.CA, certificates, group=configuration.GROUP)
    coordinator = folder / folders.COORDINATOR / "coordinator.ca.pem"
    if coordinator.exists():
        write_private(coordinator, certificates, group=folders.COORDINATOR_GROUP)


def _outdated_members(folder: Path, *, all_members: bool = False) -> OutdatedMembers:
    """Return members whose newest certificate is not from the current authority; for bundles, decided by date."""
    name_now = folders.load_authority(folder).name
    began = dt.datetime.fromtimestamp((folder / folders.CA_KEY).stat().st_mtime, dt.UTC)
    members = {
        name: member
        for name, member in sorted(folders.read(folder).members.items())
        if member.kind == "certificate" and not member.revoked
    }
    joined = [name for name, each in members.items() if each.until and (all_members or each.authority != name_now)]
    bundled = [
        name for name, each in members.items() if not each.until and (all_members or each.added <= f"{began:%Y-%m-%d}")
    ]
    return OutdatedMembers(joined, bundled)


def _next_name(fleet: str, old: Authority) -> str:
    found = _NUMBER.fullmatch(old.name)
    return f"{fleet} authority {int(found[1] or 1) + 1 if found else 2}"


log = logging.getLogger(__name__)
_RELOAD_TIMEOUT = 30.0


def reload_broker(folder: Path, command: str = "") -> bool:
    """Reload the broker of this folder; return False if there is no way to do so, or if it failed.

    command: the command that reloads the broker; by default systemctl, if the folder is the default one.
    """
    words = shlex.split(command)
    if not words:
        if folder.resolve() != Path(DEFAULT_FOLDER) or os.geteuid() != 0 or not Path("/run/systemd/system").is_dir():
            return False
        words = ["systemctl", "reload", "mosquitto"]
    try:
        done = subprocess.run(words, check=False, capture_output=True, timeout=_RELOAD_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("cannot reload the broker: %s", error)
        return False
    if done.returncode:
        log.warning("%s: exit code %d: %s", words[0], done.returncode, done.stderr.decode(errors="replace")[:200])
    return done.returncode == 0


# A broker keeps the presence and other retained messages of a removed member, which would stay on every roster. To
# clear them, this process connects to the broker on the same machine with a temporary certificate, waits until the
# broker has loaded the new access list, which allows it to clear the member's topics, clears them, and then connects
# under the member's name, which ends the member's own connection.

HOST = "127.0.0.1"
_NOT_AUTHORISED = 0x87
_REPLY_TIMEOUT = 30.0
_RETRY_SECONDS = 0.1


def clear(folder: Path, name: str, topics: Sequence[str], timeout: float) -> bool:
    """Clear the retained messages of a removed member once the broker has reloaded its files; then end its connection.

    Return False if no broker of this fleet replies on this machine; raise LinkError if it did not reload in time.
    """
    port, authority = read(folder).listeners.certificate, load_authority(folder)
    try:
        with _Cleaner(folder, authority, CLEANER, port) as cleaner:
            deadline = time.monotonic() + timeout
            while not cleaner.clear_topic(topics[0]):
                if time.monotonic() > deadline:
                    raise LinkError(f"the broker at {HOST}:{port} has not reloaded its files")
                time.sleep(_RETRY_SECONDS)
            for topic in topics[1:]:
                cleaner.clear_topic(topic)
        with _Cleaner(folder, authority, name, port):
            return True
    except OSError:
        return False


class _Cleaner:
    """A connection under a name, with a temporary certificate."""

    def __init__(self, folder: Path, authority: Authority, name: str, port: int) -> None:
        self._answers: dict[int, int] = {}
        self._answered = threading.Condition()
        self._connected: int | None = None
        self._port = port
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.tls_set_context(_context(folder, authority, name))
        self._client.on_connect = lambda _c, _u, _f, code, _p: self._on_connect(code)
        self._client.on_publish = lambda _c, _u, mid, code, _p: self._on_publish(mid, code)

    def clear_topic(self, topic: str) -> bool:
        """Clear a topic's retained message; return False if the broker does not allow it."""
        mid = self._client.publish(topic, b"", qos=1, retain=True).mid
        self._wait(lambda: mid in self._answers)
        return self._answers.pop(mid) != _NOT_AUTHORISED

    def __enter__(self) -> Self:
        self._client.connect(HOST, self._port)
        self._client.loop_start()
        self._wait(lambda: self._connected is not None)
        if self._connected:
            raise LinkError(f"the broker at {HOST}:{self._port} refused the connection (code {self._connected})")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, done: Callable[[], bool]) -> None:
        with self._answered:
            if not self._answered.wait_for(done, _REPLY_TIMEOUT):
                raise LinkError(f"the broker at {HOST}:{self._port} does not reply")

    def _on_connect(self, code: ReasonCode) -> None:
        with self._answered:
            self._connected = code.value if code.is_failure else 0
            self._answered.notify_all()

    def _on_publish(self, mid: int, code: ReasonCode) -> None:
        with self._answered:
            self._answers[mid] = code.value
            self._answered.notify_all()


def _context(folder: Path, authority: Authority, name: str) -> ssl.SSLContext:
    issued = authority.issue_for_node(name)
    context = ssl.create_default_context(cafile=str(folder / CA_FILE))
    with tempfile.TemporaryDirectory() as place:  # the ssl module reads them only from files
        certificate, key = Path(place) / "pem", Path(place) / "key"
        write_private(certificate, issued.certificate)
        write_private(key, issued.key)
        context.load_cert_chain(certificate, key)
    return context
