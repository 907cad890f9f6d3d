"""A real mosquitto on the configuration that a fleet's folder holds, and its members' ways of connecting."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

from sojourn.brokers import fleet as folders
from sojourn.brokers.acl import MemberRole
from sojourn.brokers.configuration import CONF, Listeners
from sojourn.brokers.fleet import FleetFile, Kind
from sojourn.brokers.run import find_mosquitto
from sojourn.links.settings import BrokerSettings, TlsSettings
from tests.ports import free_ports

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
        # As root mosquitto becomes a user who may not read a test's private folder.
        conf.write_text("user root\nlog_type information\n" + (self.folder / folders.BROKER / CONF).read_text())
        self.log = (self.folder / "mosquitto.log").open("ab")
        self.process = subprocess.Popen([find_mosquitto() or "mosquitto", "-c", str(conf)], stderr=self.log)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.listeners.local), timeout=1).close()
                return
            except OSError:
                assert self.process.poll() is None, self.said()
                time.sleep(0.02)
        raise AssertionError(self.said())

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.log.close()

    def reload(self) -> None:
        """Returns when the broker is at it: it does nothing else meanwhile."""
        before = self.said().count("Reloading config")
        self.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while self.said().count("Reloading config") == before:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def said(self) -> str:
        return (self.folder / "mosquitto.log").read_text()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
