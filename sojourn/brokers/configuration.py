"""The configuration of a mosquitto that serves a fleet: nobody unknown, nothing unencrypted, everything bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from sojourn.links.settings import OWN_BROKER_PAYLOAD, Port

if TYPE_CHECKING:
    from pathlib import Path

PASSWORDS, ACL, REVOKED = "passwords", "acl", "crl.pem"
CA, CERTIFICATE, KEY = "ca.pem", "server.pem", "server.key"
CONF = "mosquitto.conf"
GROUP = "mosquitto"
"""Mosquitto gives up root before it reads any of these files."""
_ENVELOPE = 44_000
"""Room for a packet's topic and properties, and for nodes of a later version."""
_MEMORY = 256 << 20
_QUEUED_BYTES = 16 << 20


class Listeners(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a broker listens: with TLS for passwords and for certificates, and plainly for its own machine."""

    password: Port = 8883
    certificate: Port = 8884
    local: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 1883
    """On 127.0.0.1 only; still with passwords. 0 for no such listener."""


def mosquitto_conf(folder: Path, listeners: Listeners) -> str:
    """The text of `mosquitto.conf`, with the other files in the same folder."""
    blocks = [_everywhere(folder), _with_passwords(folder, listeners.password)]
    blocks.append(_with_certificates(folder, listeners.certificate))
    if listeners.local:
        blocks.append(_local(listeners.local))
    return "\n".join("\n".join(block) + "\n" for block in blocks)


def _everywhere(folder: Path) -> list[str]:
    return [
        "# Written by `sojourn`: changes are lost when it writes this file again.",
        "per_listener_settings false",
        "allow_anonymous false",
        f"password_file {folder / PASSWORDS}",
        f"acl_file {folder / ACL}",
        "allow_zero_length_clientid false",
        "# Every node keeps its own journal and says again what was not answered: nothing to keep on this disk.",
        "persistence false",
        "persistent_client_expiration 1d",
        "sys_interval 0",
        "log_dest stderr",
        *(f"log_type {level}" for level in ("error", "warning", "notice")),
        "connection_messages false",
        "set_tcp_nodelay true",
        f"# The largest chunk is {OWN_BROKER_PAYLOAD} bytes; receivers pull about 1 MB at a time.",
        f"max_packet_size {OWN_BROKER_PAYLOAD + _ENVELOPE}",
        "max_inflight_messages 100",
        "max_queued_messages 1000",
        f"max_queued_bytes {_QUEUED_BYTES}",
        f"memory_limit {_MEMORY}",
    ]


def _with_passwords(folder: Path, port: int) -> list[str]:
    return [
        "# Nodes that have a password.",
        f"listener {port}",
        *_server(folder),
        # Otherwise a node with a valid password could take another's client id and throw it out.
        "use_username_as_clientid true",
    ]


def _with_certificates(folder: Path, port: int) -> list[str]:
    return [
        "# Nodes that have a certificate: its name is who they are, whatever they claim.",
        f"listener {port}",
        *_server(folder),
        f"cafile {folder / CA}",
        f"crlfile {folder / REVOKED}",
        "require_certificate true",
        "use_identity_as_username true",
        "use_username_as_clientid true",
    ]


def _local(port: int) -> list[str]:
    return [
        "# Servers and operators on this machine; operators may run several commands at once.",
        f"listener {port} 127.0.0.1",
    ]


def _server(folder: Path) -> list[str]:
    return [f"certfile {folder / CERTIFICATE}", f"keyfile {folder / KEY}", "tls_version tlsv1.2"]
