"""Shared by the tests of transports: a listener, a misbehaving broker, and a small certificate authority."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sojourn.links import mqtt
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest

    from sojourn.links.link import Link, Will

_PUBLISH = 3


def make_hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays between connection attempts."""
    monkeypatch.setattr(mqtt, "_FIRST_RECONNECT_DELAY", 0.01)
    monkeypatch.setattr(mqtt, "_REFUSED_RECONNECT_DELAY", 0.01)
    monkeypatch.setattr(mqtt, "_LONGEST_RECONNECT_DELAY", 0.1)


class Ear:
    """A listener that records all events."""

    def __init__(self) -> None:
        self.ups = 0
        self.downs: list[str] = []
        self.received: list[tuple[str, bytes]] = []

    def link_up(self, link: Link) -> None:
        self.ups += 1

    def link_down(self, link: Link, reason: str) -> None:
        self.downs.append(reason)

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:
        self.received.append((topic, payload))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.received]


class Node:
    """A link with a recording listener, open within the `with` block."""

    def __init__(
        self,
        settings: BrokerSettings,
        name: str = "node",
        filters: Sequence[str] = (),
        will: Will | None = None,
        *,
        wait: bool = True,
    ) -> None:
        self.ear = Ear()
        self.link = MqttLink(settings, name)
        self.link.open(self.ear, filters, will)
        if wait:
            wait_until(lambda: self.ear.ups >= 1, f"the connection of {name}", lambda: self.ear.downs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def assert_receives(self, payload: bytes) -> None:
        """Wait for a payload."""
        wait_until(lambda: payload in self.ear.payloads, f"{payload[:20]!r} to arrive", lambda: self.ear.downs)

    def assert_acknowledged(self) -> None:
        """Wait until the broker has acknowledged all published messages, including rejected ones.

        Messages that the broker sent to this node before have arrived by then, because the order is kept.
        """
        wait_until(self._is_acknowledged, "the broker's acknowledgements", lambda: self.ear.downs)

    def assert_reported(self, *words: str) -> None:
        """Wait for a disconnect reason that contains all the words."""
        wait_until(
            lambda: any(all(word in why for word in words) for why in self.ear.downs),
            f"a reason with {words}",
            lambda: self.ear.downs,
        )

    def _is_acknowledged(self) -> bool:
        session = self.link._session
        return session is not None and session._window.is_empty


class ScriptedBroker:
    """A broker that replies to every CONNECT with the given bytes, acknowledges nothing, and counts other packets."""

    def __init__(self, answer: Callable[[int], bytes], *, hang_up_on: int | None = None, deaf: bool = False) -> None:
        self.versions: list[int] = []
        self.publishes = 0
        self.last = b""
        self.ended = 0
        self._answer = answer
        self._hang_up_on = hang_up_on
        self._deaf = deaf
        self._left = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.settings = BrokerSettings(host="127.0.0.1", port=self._server.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        # Closing alone would leave the thread in accept() and the port in use.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Close all connections."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as stream, contextlib.suppress(OSError, IndexError):
            version = _packet(stream.read)[1][6]
            self.versions.append(version)
            client.sendall(self._answer(version))
            while version != self._hang_up_on:
                if self._deaf:
                    self._left.wait()
                    return
                command, body = _packet(stream.read)
                if command >> 4 == _PUBLISH:
                    self.last = body[-3:]
                    self.publishes += 1
        self.ended += 1


def _packet(read: Callable[[int], bytes]) -> tuple[int, bytes]:
    command, length, shift = read(1)[0], 0, 0
    while True:
        byte = read(1)[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return command, read(length)


class Authority:
    """A certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "test-ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.file = folder / "ca.pem"
        certificate = _builder(self._name, self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None),
            critical=True,
        )
        self.file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, begins: float = -1.0) -> tuple[str, str]:
        """Write a certificate, valid for two days from N days from now, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key.public_key(), begins)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return str(certificate), str(private)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: float = -1.0
) -> x509.CertificateBuilder:
    """Return a certificate that is valid for two days from N days from now."""
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=begins + 1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
