"""A real mosquitto on the configuration that a fleet's folder holds, and its members' ways of connecting."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Self

from sojourn.brokers import fleet as folders
from sojourn.brokers.acl import MemberRole
from sojourn.brokers.configuration import CONF, Listeners
from sojourn.brokers.fleet import FleetFile, Kind
from sojourn.brokers.run import find_mosquitto
from sojourn.links.settings import BrokerSettings, TlsSettings
from tests.ports import free_ports, is_listening
from tests.sojourn.brokers.brokers import Node
from tests.waiting import LIMIT, wait_until

FLEET = "field"


class GuardedBroker:
    """A fleet's folder with its broker, running for as long as the block."""

    def __init__(self, folder: Path, *, passwords: bool = True) -> None:
        """With `passwords` there is a listener for them, which is not so unless somebody chooses it."""
        self.folder = folder
        self.issued = 0
        ports = free_ports(3)
        self.listeners = Listeners(password=ports[0] if passwords else 0, certificate=ports[1], local=ports[2])
        folders.create(folder, FleetFile(fleet=FLEET, hosts=("localhost",), listeners=self.listeners), signed_here=True)

    def add(
        self, name: str, role: MemberRole = "device", kind: Kind = "password", *, renew: bool = False
    ) -> BrokerSettings:
        """A member's way to connect."""
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
        """The way of a server on the broker's own machine."""
        _, secret = folders.admit(self.folder, name, role, "password")
        password = secret.files["password"].decode().strip()
        return BrokerSettings(host="127.0.0.1", port=self.listeners.local, username=name, password=password)

    def start(self) -> None:
        conf = self.folder / "as-root.conf"
        written = (self.folder / folders.BROKER / CONF).read_text()
        # Without these messages mosquitto 2.0 logs a refused certificate only where the client's part of the handshake
        # comes after its first look for it; a quick client's is there already.
        written = written.replace("connection_messages false", "connection_messages true")
        # As root mosquitto becomes a user who may not read a test's private folder.
        conf.write_text("user root\nlog_type information\n" + written)
        self.log = (self.folder / "mosquitto.log").open("ab")
        self.process = subprocess.Popen([find_mosquitto() or "mosquitto", "-c", str(conf)], stderr=self.log)
        wait_until(self._listens, "the broker's last listener", self.said)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT)
        self.log.close()

    def reload(self) -> None:
        """Have the broker read its files again: what reaches it after this is judged by the new ones.

        It says so when it begins, and has one thread, which serves nobody until it has read everything.
        """
        before = self.said().count("Reloading config")
        self.process.send_signal(signal.SIGHUP)
        wait_until(lambda: self.said().count("Reloading config") > before, "the broker to reload", self.said)

    def assert_refuses_certificate(self, settings: BrokerSettings, name: str) -> None:
        """A node never connects, and the broker says that it is for its certificate.

        What the node hears of it is left to chance: the alert, or only the end of the connection.
        """
        before = self.said()
        with Node(settings, name, wait=False) as node:
            self.assert_says_again("certificate verify failed", before)
            assert node.ear.ups == 0

    def assert_says_again(self, words: str, before: str) -> None:
        """Wait until the broker says these words more often than it had before."""
        wait_until(lambda: self.said().count(words) > before.count(words), f"the broker to say {words!r}", self.said)

    def said(self) -> str:
        return (self.folder / "mosquitto.log").read_text()

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.said()
        return is_listening(self.listeners.local)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
