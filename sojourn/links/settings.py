"""The settings for a node's broker, and for a broker that is started for demo and development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sojourn.errors import ConfigError
from sojourn.loopback import is_loopback

OWN_BROKER_PAYLOAD = 256_000
"""The payload limit for brokers that accept more: larger packets are no faster, and delay the ping on slow uplinks."""
_PLAIN_PORT = 1883
_TLS_PORT = 8883

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
MetricsPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""The port of a node's metrics on this machine; 0: no metrics."""
Protocol = Literal["auto", "5", "3.1.1"]


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files for an encrypted connection; without a CA file the system's CAs are trusted."""

    ca_file: str | None = None
    """File of the trusted CAs; the system's CAs by default. Example: `"ca.pem"`."""
    certificate_file: str | None = None
    """File of this node's certificate, if the broker requires one. Example: `"agent.pem"`."""
    key_file: str | None = None
    """File of the private key of that certificate. Example: `"agent.key"`."""
    insecure: bool = False
    """Encrypt, but do not verify the broker's certificate. Only for a first test."""


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a node reaches its broker."""

    host: str = "localhost"
    """The broker's host name or address."""
    port: Port | None = None
    """The port; 1883 by default, or 8883 with TLS. Example: `8884`."""
    username: str | None = None
    """The MQTT user name; the node's name by default, empty for none. Example: `"pi-1"`."""
    password: str | None = None
    """The password; `password_file` is safer. Example: `"secret"`."""
    password_file: str | None = None
    """File of the password, so that the settings do not contain it. Example: `"agent.password"`."""
    tls: bool | TlsSettings = False
    """`true` to encrypt with the system's CAs, or a table `[broker.tls]`."""
    protocol: Protocol = "auto"
    """The MQTT version; `auto` tries MQTT 5 and falls back to 3.1.1."""
    keepalive: Annotated[int, msgspec.Meta(ge=5, le=65_535)] = 60
    """The MQTT keepalive in seconds; twice the time that the upload of the largest payload may take."""
    max_payload: Annotated[int, msgspec.Meta(ge=30_000, le=1_000_000)] | None = None
    """The largest payload in bytes, for a broker that does not announce its limit. Example: `100_000`."""

    def __repr__(self) -> str:
        return f"BrokerSettings(host={self.host!r}, port={self.effective_port}, username={self.username!r}, ...)"

    @property
    def effective_port(self) -> int:
        """The port, with the default applied."""
        return self.port or (_TLS_PORT if self.tls else _PLAIN_PORT)

    @property
    def is_local(self) -> bool:
        """Whether the broker's address is this machine."""
        return is_loopback(self.host)

    @property
    def address(self) -> str:
        """The broker's host and port, for messages."""
        return f"{self.host}:{self.effective_port}"


class BrokerTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The TLS files of a broker that is started on this machine."""

    certificate_file: str
    key_file: str
    ca_file: str | None = None
    """Clients must have a certificate of this CA; the name in it is their username."""


class LocalBroker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A broker to start on this machine."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """The port; 0 picks a free one."""
    kind: Literal["auto", "mosquitto", "amqtt"] = "auto"
    max_packet: Annotated[int, msgspec.Meta(ge=1_024)] = 1_000_000
    """The largest packet that the broker accepts, in bytes."""
    memory_limit: Annotated[int, msgspec.Meta(ge=0)] = 512_000_000
    """The memory limit of the broker in bytes; 0: no limit."""
    users: dict[str, str] = {}
    """Passwords by username; if empty, any client may connect."""
    tls: BrokerTls | None = None
    acl: str | None = None
    """The text of a mosquitto ACL, as `sojourn.brokers.acl.acl_lines` writes it."""


def read_password(settings: BrokerSettings) -> str | None:
    """Return the password, from the settings or from the file they name."""
    if settings.password_file is None:
        return settings.password
    if settings.password is not None:
        raise ConfigError("broker: both password and password_file are set: remove one of them")
    path = Path(settings.password_file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"broker: cannot read the password file {path} ({why}): "
            "create it with the password on one line, readable by the user that runs this node",
        ) from error
    password = text.strip("\r\n")
    if not password or "\n" in password:
        raise ConfigError(f"broker: the password file {path} must contain only the password, on one line")
    return password
