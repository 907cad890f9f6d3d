"""A real mosquitto with the configuration of a fleet folder, and its members' connection settings."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Self

from sojourn.brokers import fleet as folders
from sojourn.brokers.acl import MemberRole
from sojourn.brokers.configuration import CONF, Listeners
from sojourn.brokers.fleet import FleetFile, Kind
from sojourn.brokers.local_broker import find_mosquitto
from sojourn.links.settings import BrokerSettings, TlsSettings
from tests.ports import free_ports, is_listening
from tests.sojourn.brokers.brokers import Node
from tests.waiting import LIMIT, wait_until

FLEET = "field"


class GuardedBroker:
    """A fleet folder with its broker, which runs within the `with` block."""

    def __init__(self, folder: Path, *, passwords: bool = True) -> None:
        """Create the fleet; `passwords` adds a listener for passwords, which is off by default."""
        self.folder = folder
        self.issued = 0
        ports = free_ports(3)
        self.listeners = Listeners(password=ports[0] if passwords else 0, certificate=ports[1], local=ports[2])
        folders.create(folder, FleetFile(fleet=FLEET, hosts=("localhost",), listeners=self.listeners), signed_here=True)

    def add(
        self, name: str, role: MemberRole = "device", kind: Kind = "password", *, renew: bool = False
    ) -> BrokerSettings:
        """Return a member's connection settings."""
        _, secret = folders.admit(self.folder, name, role, kind, renew=renew)
        self.issued += 1
        files = {}
        for suffix, data in secret.files.items():
            files[suffix] = self.folder / f"{name}-{self.issued}.{suffix}"
            files[suffix].write_bytes(data)
        ca = str(self.folder / folders.CA_FILE)
        if kind == "password":
            password = files["password"].read_text().strip()
            return BrokerSettings(
                port=self.listeners.password, username=name, password=password, tls=TlsSettings(ca_file=ca)
            )
        tls = TlsSettings(ca_file=ca, certificate_file=str(files["pem"]), key_file=str(files["key"]))
        return BrokerSettings(port=self.listeners.certificate, tls=tls)

    def add_local(self, name: str, role: MemberRole) -> BrokerSettings:
        """Return the connection settings of a server on the broker's machine."""
        _, secret = folders.admit(self.folder, name, role, "password")
        password = secret.files["password"].decode().strip()
        return BrokerSettings(host="127.0.0.1", port=self.listeners.local, username=name, password=password)

    def start(self) -> None:
        conf = self.folder / "as-root.conf"
        written = (self.folder / folders.BROKER / CONF).read_text()
        # Without these messages, mosquitto 2.0 logs a rejected certificate only if the client's handshake data arrives
        # after its first read; a fast client's data arrives earlier.
        written = written.replace("connection_messages false", "connection_messages true")
        # Started as root, mosquitto becomes a user that cannot read a test's private folder.
        conf.write_text("user root\nlog_type information\n" + written)
        self.log = (self.folder / "mosquitto.log").open("ab")
        self.process = subprocess.Popen([find_mosquitto() or "mosquitto", "-c", str(conf)], stderr=self.log)
        wait_until(self._listens, "the broker's last listener", self.log_text)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT)
        self.log.close()

    def reload(self) -> None:
        """Reload the broker's files; later messages are checked against the new ones.

        It logs the start of the reload, and its only thread serves no client until the reload is complete.
        """
        before = self.log_text().count("Reloading config")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.log_text().count("Reloading config") > before, "the broker to reload", self.log_text)

    def assert_refuses_certificate(self, settings: BrokerSettings, name: str) -> None:
        """Assert that a node cannot connect and that the broker logs an invalid certificate as the reason.

        The node may receive a TLS alert or only the end of the connection.
        """
        before = self.log_text()
        with Node(settings, name, wait=False) as node:
            self.assert_logs_again("certificate verify failed", before)
            assert node.ear.ups == 0

    def assert_logs_again(self, words: str, before: str) -> None:
        """Wait until the broker has logged these words once more than before."""
        wait_until(
            lambda: self.log_text().count(words) > before.count(words), f"the broker to log {words!r}", self.log_text
        )

    def log_text(self) -> str:
        return (self.folder / "mosquitto.log").read_text()

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log_text()
        return is_listening(self.listeners.local)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
