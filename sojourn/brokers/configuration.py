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
_FROM_AFAR, _FROM_HERE = 3_800, 300
"""Connections of a listener that others can reach, and of the one on 127.0.0.1: both of the former and the latter stay
below LimitNOFILE in the unit, so that nobody from afar takes the last file from those who are on this machine."""
_QUEUED = 1_000
_ONE_CLIENT_EACH = "use_username_as_clientid true"
"""Otherwise a node with a valid password could take another's client id and throw it out."""


OptionalPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Listeners(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a broker listens: with TLS for certificates and for passwords, and plainly for its own machine."""

    password: OptionalPort = 8883
    """0 for no such listener, as new fleets have it; a file that does not say is of a version that always had one."""
    certificate: Port = 8884
    local: OptionalPort = 1883
    """On 127.0.0.1 only; still with passwords. 0 for no such listener."""


@dataclass(frozen=True)
class BrokerLimits:
    """What a broker takes at most: bytes of a packet, messages and bytes that wait for one client, bytes of memory.

    Receivers pull a window at a time, about 1 MB: the limits are for when something goes wrong. memory: 0 is no limit.

    No single member may come near `memory`: there Mosquitto refuses what is large, but ends when what it needs is
    small (exit code 255). At most a member holds (edge servers + 1) retained packets, a will, and what waits for it if
    it does not read: `queued` packets in QoS 0, about 260 MB.
    """

    packet: int
    queued: int
    queued_bytes: int
    memory: int


def limits_of(devices: int) -> BrokerLimits:
    """For a fleet's broker: after a restart the presence of all devices waits for an edge server at once."""
    return BrokerLimits(OWN_BROKER_PAYLOAD + _ENVELOPE, max(_QUEUED, 2 * devices), 16 << 20, 512 << 20)


def fleet_conf(folder: Path, listeners: Listeners, devices: int = 0) -> str:
    """For a fleet's broker, with its other files in the same folder: nobody unknown, nothing open, all bounded."""
    blocks = [_everywhere(folder, limits_of(devices)), _with_certificates(folder, listeners.certificate)]
    if listeners.password:
        blocks.append(_with_passwords(folder, listeners.password))
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


def _everywhere(folder: Path, limits: BrokerLimits) -> list[str]:
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
        *_bounded(limits),
        f"max_inflight_bytes {4 << 20}",
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
        *_of_listener(_FROM_AFAR),
        *_server(folder / CERTIFICATE, folder / KEY),
        _ONE_CLIENT_EACH,
    ]


def _with_certificates(folder: Path, port: int) -> list[str]:
    return [
        "# Nodes that have a certificate: its name is who they are, whatever they claim.",
        f"listener {port}",
        *_of_listener(_FROM_AFAR),
        *_server(folder / CERTIFICATE, folder / KEY),
        *_clients(folder / CA),
        f"crlfile {folder / REVOKED}",
        _ONE_CLIENT_EACH,
    ]


def _local(port: int) -> list[str]:
    return [
        "# Servers and operators on this machine; operators may run several commands at once.",
        f"listener {port} 127.0.0.1",
        *_of_listener(_FROM_HERE),
    ]


def _of_listener(connections: int) -> list[str]:
    """Nodes use neither QoS 2 nor topic aliases, with both of which a client makes the broker keep more for it."""
    return [f"max_connections {connections}", "max_qos 1", "max_topic_alias 0"]


def _server(certificate: Path, key: Path) -> list[str]:
    return [f"certfile {certificate}", f"keyfile {key}", "tls_version tlsv1.2"]


def _clients(authority: Path) -> list[str]:
    return [f"cafile {authority}", "require_certificate true", "use_identity_as_username true"]
