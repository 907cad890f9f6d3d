"""Mosquitto's configuration: mosquitto.conf and the password file."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from sojourn.errors import ConfigError
from sojourn.links.settings import OWN_BROKER_PAYLOAD, LocalBroker, Port

PASSWORDS, ACL, REVOKED = "passwords", "acl", "crl.pem"
CA, CERTIFICATE, KEY = "ca.pem", "server.pem", "server.key"
CONF = "mosquitto.conf"
GROUP = "mosquitto"
"""The group of these files; mosquitto drops root privileges before it reads them."""
_HEADER_ROOM = 44_000
"""Bytes for a packet's topic and properties, with a reserve for later versions."""
_MAX_REMOTE, _MAX_LOCAL = 3_800, 300
"""Maximum connections of each remote listener, and of the one on 127.0.0.1: their sum is below LimitNOFILE in the unit,
so that remote clients cannot use up the file descriptors for local ones."""
_MIN_QUEUED = 1_000
_USERNAME_AS_CLIENT_ID = "use_username_as_clientid true"
"""Otherwise a node with a valid password could use another node's client id and disconnect it."""


OptionalPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Listeners(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A broker's ports: TLS with certificates, TLS with passwords, and plain MQTT on its own machine."""

    password: OptionalPort = 0
    """The TLS port for passwords; 0 disables it."""
    certificate: Port = 8884
    local: OptionalPort = 1883
    """The plain port on 127.0.0.1, which also requires passwords; 0 disables it."""


@dataclass(frozen=True)
class BrokerLimits:
    """A broker's limits: packet bytes, queued messages and bytes per client, and bytes of memory (0: no limit).

    Receivers request about 1 MB at a time, so that the limits matter only in failures.

    A single member must not get near `memory`: there Mosquitto rejects large allocations, but exits with code 255 if a
    small one fails. A member can use at most (edge servers + 1) retained packets, a will, and its queue if it does not
    read: `queued` packets in QoS 0, about 260 MB.
    """

    packet: int
    queued: int
    queued_bytes: int
    memory: int


def broker_limits(devices: int) -> BrokerLimits:
    """Return the limits of a fleet's broker; after a restart, it queues the presence of all devices at once."""
    return BrokerLimits(OWN_BROKER_PAYLOAD + _HEADER_ROOM, max(_MIN_QUEUED, 2 * devices), 16 << 20, 512 << 20)


def fleet_conf(folder: Path, listeners: Listeners, devices: int = 0) -> str:
    """Return mosquitto.conf for a fleet's broker, whose other files are in the same folder."""
    blocks = [_global_settings(folder, broker_limits(devices)), _with_certificates(folder, listeners.certificate)]
    if listeners.password:
        blocks.append(_with_passwords(folder, listeners.password))
    if listeners.local:
        blocks.append(_local(listeners.local))
    return "\n".join("\n".join(block) + "\n" for block in blocks)


def local_conf(settings: LocalBroker, port: int, passwords: Path | None, acl: Path | None) -> str:
    """Return mosquitto.conf for a child process; `passwords` and `acl` are optional files."""
    named = passwords is not None or (settings.tls is not None and settings.tls.ca_file is not None)
    # Started as root, mosquitto becomes the user `mosquitto`, which cannot read a private folder.
    root = sys.platform != "win32" and os.geteuid() == 0
    lines = [
        f"listener {port} {settings.host}",
        f"allow_anonymous {'false' if settings.users else 'true'}",
        *_limits(BrokerLimits(settings.max_packet, 10_000, 64_000_000, settings.memory_limit)),
        *(["user root"] if root else []),
        *([f"password_file {passwords.resolve()}"] if passwords is not None else []),
        *([f"acl_file {acl.resolve()}"] if acl is not None else []),
        *([_USERNAME_AS_CLIENT_ID] if named else []),
    ]
    if settings.tls is not None:
        lines += _server(Path(settings.tls.certificate_file).resolve(), Path(settings.tls.key_file).resolve())
        if settings.tls.ca_file is not None:
            lines += _clients(Path(settings.tls.ca_file).resolve())
    return "\n".join(lines) + "\n"


def _global_settings(folder: Path, limits: BrokerLimits) -> list[str]:
    return [
        "# Written by `sojourn`: changes are lost when it writes this file again.",
        "per_listener_settings false",
        "allow_anonymous false",
        f"password_file {folder / PASSWORDS}",
        f"acl_file {folder / ACL}",
        "allow_zero_length_clientid false",
        "persistent_client_expiration 1d",
        "sys_interval 0",
        f"# The largest chunk is {OWN_BROKER_PAYLOAD} bytes; receivers pull about 1 MB at a time.",
        *_limits(limits),
        f"max_inflight_bytes {4 << 20}",
    ]


def _limits(limits: BrokerLimits) -> list[str]:
    return [
        "# Every node has a journal and resends unanswered messages, so the broker does not persist anything.",
        "persistence false",
        "log_dest stderr",
        *(f"log_type {level}" for level in ("error", "warning", "notice")),
        "connection_messages false",
        "set_tcp_nodelay true",
        f"max_packet_size {limits.packet}",
        "max_inflight_messages 100",
        f"max_queued_messages {limits.queued}",
        f"max_queued_bytes {limits.queued_bytes}",
        *([f"memory_limit {limits.memory}"] if limits.memory else []),
    ]


def _with_passwords(folder: Path, port: int) -> list[str]:
    return [
        "# Nodes with passwords.",
        f"listener {port}",
        *_listener_limits(_MAX_REMOTE),
        *_server(folder / CERTIFICATE, folder / KEY),
        _USERNAME_AS_CLIENT_ID,
    ]


def _with_certificates(folder: Path, port: int) -> list[str]:
    return [
        "# Nodes with certificates: the user name is the name in the certificate.",
        f"listener {port}",
        *_listener_limits(_MAX_REMOTE),
        *_server(folder / CERTIFICATE, folder / KEY),
        *_clients(folder / CA),
        f"crlfile {folder / REVOKED}",
        _USERNAME_AS_CLIENT_ID,
    ]


def _local(port: int) -> list[str]:
    return [
        "# Servers and operators on this machine; operators can run several commands at once.",
        f"listener {port} 127.0.0.1",
        *_listener_limits(_MAX_LOCAL),
    ]


def _listener_limits(connections: int) -> list[str]:
    """Disable QoS 2 and topic aliases, which nodes do not use and which cost memory per client."""
    return [f"max_connections {connections}", "max_qos 1", "max_topic_alias 0"]


def _server(certificate: Path, key: Path) -> list[str]:
    return [f"certfile {certificate}", f"keyfile {key}", "tls_version tlsv1.2"]


def _clients(authority: Path) -> list[str]:
    return [f"cafile {authority}", "require_certificate true", "use_identity_as_username true"]


_ROUNDS = 1000
"""Few rounds suffice, because passwords of 24 random bytes cannot be guessed."""
_BYTES = 24


def new_password() -> str:
    """Return a random password."""
    return secrets.token_urlsafe(_BYTES)


def hashed(password: str) -> str:
    """Hash a password like `mosquitto_passwd` (PBKDF2, SHA-512), without the password on a command line."""
    salt = secrets.token_bytes(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ROUNDS)
    return f"$7${_ROUNDS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def password_file(users: Mapping[str, str]) -> str:
    """Return the text of a password file with these passwords."""
    for user, password in users.items():
        if not user or ":" in user or "\n" in user + password:
            raise ConfigError(
                f"the user name {user!r} or its password contains a character that a password file cannot contain"
            )
    return lines({user: hashed(password) for user, password in users.items()})


def lines(hashes: Mapping[str, str]) -> str:
    """Return the text of a password file with these hashes."""
    return "".join(f"{user}:{text}\n" for user, text in hashes.items())


def read_lines(text: str) -> dict[str, str]:
    """Return the hashes of a password file, by user."""
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {user: hashed for user, _, hashed in pairs}
