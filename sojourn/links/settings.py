"""How a node reaches its broker, and how a broker is started for demo and development."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sojourn.errors import ConfigError

OWN_BROKER_PAYLOAD = 256_000
"""For a broker that takes more, or anything: larger packets are no faster, and starve the ping on a slow uplink."""
_PLAIN_PORT = 1883
_TLS_PORT = 8883

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
MetricsPort = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""Where a node serves its figures on this machine; 0: nowhere."""
Protocol = Literal["auto", "5", "3.1.1"]


def is_loopback(host: str) -> bool:
    """Whether an address leads to this machine and is seen by no other."""
    return host in {"localhost", "::1"} or host.startswith("127.")


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files for an encrypted connection; without a CA file the system's own CAs are trusted."""

    ca_file: str | None = None
    """Whose certificates are trusted; the system's own CAs unless told. Example: `"ca.pem"`."""
    certificate_file: str | None = None
    """This node's certificate, where the broker asks for one. Example: `"agent.pem"`."""
    key_file: str | None = None
    """The private key of that certificate. Example: `"agent.key"`."""
    insecure: bool = False
    """Encrypt, but do not check who the broker is. For a first try only."""


class BrokerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a node reaches its broker."""

    host: str = "localhost"
    """The broker's name or address."""
    port: Port | None = None
    """1883 unless told, or 8883 with TLS. Example: `8884`."""
    username: str | None = None
    """The node's own name unless told; an empty one connects without a name. Example: `"pi-1"`."""
    password: str | None = None
    """The password itself; `password_file` is safer. Example: `"secret"`."""
    password_file: str | None = None
    """Where the password stands, so that it need not stand in the config. Example: `"agent.password"`."""
    tls: bool | TlsSettings = False
    """`true` to encrypt with the system's CAs, or a table `[broker.tls]`."""
    protocol: Protocol = "auto"
    """`auto` tries MQTT 5 and falls back to 3.1.1."""
    keepalive: Annotated[int, msgspec.Meta(ge=5, le=65_535)] = 60
    """Seconds; twice the time that the largest payload may take on the way up."""
    max_payload: Annotated[int, msgspec.Meta(ge=30_000, le=1_000_000)] | None = None
    """The largest payload to send, for a broker that does not state its own limit. Example: `100_000`."""

    def __repr__(self) -> str:
        return f"BrokerSettings(host={self.host!r}, port={self.effective_port}, username={self.username!r}, ...)"

    @property
    def effective_port(self) -> int:
        """The port that is used."""
        return self.port or (_TLS_PORT if self.tls else _PLAIN_PORT)

    @property
    def here(self) -> bool:
        """Whether the broker is on this machine, by its address."""
        return is_loopback(self.host)

    @property
    def address(self) -> str:
        """The broker in words, for messages to people."""
        return f"{self.host}:{self.effective_port}"


class BrokerTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a broker that is started here needs to speak TLS."""

    certificate_file: str
    key_file: str
    ca_file: str | None = None
    """Clients must show a certificate of this CA; its name is then their username."""


class LocalBroker(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A broker to start on this machine."""

    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """0 picks a free one."""
    kind: Literal["auto", "mosquitto", "amqtt"] = "auto"
    max_packet: Annotated[int, msgspec.Meta(ge=1_024)] = 1_000_000
    """The largest packet the broker takes, in bytes."""
    memory_limit: Annotated[int, msgspec.Meta(ge=0)] = 512_000_000
    """The most memory the broker takes, in bytes; 0 for no limit."""
    users: dict[str, str] = {}
    """Passwords by username; without any, everyone may connect."""
    tls: BrokerTls | None = None
    acl: str | None = None
    """The text of a mosquitto ACL, as `sojourn.brokers.acl.acl_lines` writes it."""


def read_password(settings: BrokerSettings) -> str | None:
    """The password, from the settings or from the file they name."""
    if settings.password_file is None:
        return settings.password
    if settings.password is not None:
        raise ConfigError("broker: both password and password_file are given: remove one of them")
    path = Path(settings.password_file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"broker: the password file {path} cannot be read ({why}): "
            "create it with the password on one line, readable by the user that runs this node",
        ) from error
    password = text.strip("\r\n")
    if not password or "\n" in password:
        raise ConfigError(f"broker: the password file {path} must hold the password on one line, and nothing else")
    return password
