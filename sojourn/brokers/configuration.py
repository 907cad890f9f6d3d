"""The one writer of mosquitto.conf: for the broker of a fleet, and for one that is started here for a while."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from sojourn.links.settings import OWN_BROKER_PAYLOAD, Port

if TYPE_CHECKING:
    from sojourn.links.settings import LocalBroker

PASSWORDS, ACL, REVOKED = "passwords", "acl", "crl.pem"
CA, CERTIFICATE, KEY = "ca.pem", "server.pem", "server.key"
CONF = "mosquitto.conf"
GROUP = "mosquitto"
"""Mosquitto gives up root before it reads any of these files."""
_ENVELOPE = 44_000
"""Room for a packet's topic and properties, and for nodes of a later version."""
_ONE_CLIENT_EACH = "use_username_as_clientid true"
"""Otherwise a node with a valid password could take another's client id and throw it out."""


class Listeners(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a broker listens: with TLS for passwords and for certificates, and plainly for its own machine."""

    password: Port = 8883
    certificate: Port = 8884
    local: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 1883
    """On 127.0.0.1 only; still with passwords. 0 for no such listener."""


@dataclass(frozen=True)
class BrokerLimits:
    """What a broker takes at most: bytes of a packet, messages and bytes that wait for one client, bytes of memory.

    Receivers pull a window at a time, about 1 MB: the limits are for when something goes wrong. memory: 0 is no limit.
    """

    packet: int
    queued: int
    queued_bytes: int
    memory: int


_OF_A_FLEET = BrokerLimits(OWN_BROKER_PAYLOAD + _ENVELOPE, 1000, 16 << 20, 256 << 20)


def fleet_conf(folder: Path, listeners: Listeners) -> str:
    """For a fleet's broker, with its other files in the same folder: nobody unknown, nothing open, all bounded."""
    blocks = [_everywhere(folder), _with_passwords(folder, listeners.password)]
    blocks.append(_with_certificates(folder, listeners.certificate))
    if listeners.local:
        blocks.append(_local(listeners.local))
    return "\n".join("\n".join(block) + "\n" for block in blocks)


def local_conf(settings: LocalBroker, port: int, passwords: Path | None, acl: Path | None) -> str:
    """For a broker that is started here as a child process; `passwords` and `acl` are files, where there are some."""
    named = passwords is not None or (settings.tls is not None and settings.tls.ca_file is not None)
    # As root mosquitto becomes the user `mosquitto`, who may not read a private folder.
    root = sys.platform != "win32" and os.geteuid() == 0
    lines = [
        f"listener {port} {settings.host}",
        f"allow_anonymous {'false' if settings.users else 'true'}",
        *_bounded(BrokerLimits(settings.max_packet, 10_000, 64_000_000, settings.memory_limit)),
        *(["user root"] if root else []),
        *([f"password_file {passwords.resolve()}"] if passwords is not None else []),
        *([f"acl_file {acl.resolve()}"] if acl is not None else []),
        *([_ONE_CLIENT_EACH] if named else []),
    ]
    if settings.tls is not None:
        lines += _server(Path(settings.tls.certificate_file).resolve(), Path(settings.tls.key_file).resolve())
        if settings.tls.ca_file is not None:
            lines += _clients(Path(settings.tls.ca_file).resolve())
    return "\n".join(lines) + "\n"


def _everywhere(folder: Path) -> list[str]:
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
        *_bounded(_OF_A_FLEET),
    ]


def _bounded(limits: BrokerLimits) -> list[str]:
    return [
        "# Every node keeps its own journal and says again what was not answered: nothing to keep on this disk.",
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
        "# Nodes that have a password.",
        f"listener {port}",
        *_server(folder / CERTIFICATE, folder / KEY),
        _ONE_CLIENT_EACH,
    ]


def _with_certificates(folder: Path, port: int) -> list[str]:
    return [
        "# Nodes that have a certificate: its name is who they are, whatever they claim.",
        f"listener {port}",
        *_server(folder / CERTIFICATE, folder / KEY),
        *_clients(folder / CA),
        f"crlfile {folder / REVOKED}",
        _ONE_CLIENT_EACH,
    ]


def _local(port: int) -> list[str]:
    return [
        "# Servers and operators on this machine; operators may run several commands at once.",
        f"listener {port} 127.0.0.1",
    ]


def _server(certificate: Path, key: Path) -> list[str]:
    return [f"certfile {certificate}", f"keyfile {key}", "tls_version tlsv1.2"]


def _clients(authority: Path) -> list[str]:
    return [f"cafile {authority}", "require_certificate true", "use_identity_as_username true"]
