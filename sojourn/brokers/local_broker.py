"""A local broker as a child process, for demos and development."""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from sojourn.brokers.configuration import CONF, local_conf, password_file
from sojourn.errors import BrokerError
from sojourn.links.settings import OWN_BROKER_PAYLOAD, BrokerSettings, LocalBroker
from sojourn.processes import last_lines, start_program, wait_or_kill
from sojourn.store.files import write_private

log = logging.getLogger(__name__)
_START_TIMEOUT = 60.0
"""A broker on a busy machine may start slowly; one that fails to start exits before the timeout."""
_CONNECT_TIMEOUT = 1.0
_STOP_TIMEOUT = 3.0
_PORT_ATTEMPTS = 5
_CONNECT = b"\x10\x18\x00\x04MQTT\x04\x82\x00\x3c\x00\x05probe\x00\x05probe"
"""An MQTT 3.1.1 CONNECT packet; any reply shows that the broker is ready."""
# Debian installs it in a folder that is only on root's PATH.
_SEARCH_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/bin", "/usr/local/bin")

Kind = Literal["mosquitto", "amqtt"]


class Broker:
    """A running broker; leave the `with` block or call `stop` to end it."""

    def __init__(self, kind: Kind, host: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.kind = kind
        self.host = host
        self.port = port
        self._process = process
        atexit.register(self.stop)

    @property
    def settings(self) -> BrokerSettings:
        """The connection settings for clients without credentials."""
        if self.kind == "mosquitto":
            return BrokerSettings(host=self.host, port=self.port)
        # amqtt does not reply to MQTT 5, and 3.1.1 has no field for the packet limit; amqtt has none.
        return BrokerSettings(host=self.host, port=self.port, protocol="3.1.1", max_payload=OWN_BROKER_PAYLOAD)

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the broker; further calls do nothing."""
        atexit.unregister(self.stop)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.poll() is not None:
            return
        self._process.terminate()
        wait_or_kill(self._process, _STOP_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def start_broker(settings: LocalBroker, folder: Path) -> Broker:
    """Start mosquitto, or amqtt if it is not installed, and return once it accepts connections."""
    kind, program = _choose(settings)
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(_PORT_ATTEMPTS - 1 if settings.port == 0 else 0):
        try:
            return _launch(kind, program, settings, folder)
        except BrokerError as error:
            # Another program may have taken the free port in the meantime.
            if "address already in use" not in str(error).lower():
                raise
    return _launch(kind, program, settings, folder)


def find_mosquitto() -> str | None:
    """Return the path of mosquitto, or None if it is not installed."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_SEARCH_FOLDERS))


def _choose(settings: LocalBroker) -> tuple[Kind, str | None]:
    program = None if settings.kind == "amqtt" else find_mosquitto()
    if program is not None:
        return "mosquitto", program
    if settings.kind == "mosquitto":
        raise BrokerError("mosquitto was not found: install it (apt install mosquitto), or put it on PATH")
    if settings.users or settings.tls is not None or settings.acl is not None:
        raise BrokerError("users, TLS and access rules need mosquitto: install it (apt install mosquitto)")
    if importlib.util.find_spec("amqtt") is None:
        raise BrokerError("neither mosquitto nor amqtt was found: install mosquitto (apt install mosquitto)")
    if settings.kind == "auto":
        log.warning(
            "mosquitto was not found; using amqtt (pure Python; for demo and development only). "
            "Install mosquitto for other uses.",
        )
    return "amqtt", None


def _command(settings: LocalBroker, folder: Path, port: int, mosquitto: str | None) -> list[str]:
    if mosquitto is None:
        return [sys.executable, "-m", "sojourn.brokers.python_broker", settings.host, str(port)]
    passwords = folder / "mosquitto.passwords" if settings.users else None
    if passwords is not None:
        write_private(passwords, password_file(settings.users))
    acl = folder / "mosquitto.acl" if settings.acl is not None else None
    if acl is not None:
        write_private(acl, settings.acl or "")
    config = folder / CONF
    write_private(config, local_conf(settings, port, passwords, acl))
    return [mosquitto, "-c", str(config)]


def _free_port(settings: LocalBroker) -> int:
    """Return the configured port if it is free, or any free port for 0."""
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        if _is_serving(settings.host, settings.port, tls=settings.tls is not None):
            raise BrokerError(
                f"a broker already listens on {settings.host}:{settings.port}, perhaps Debian's Mosquitto service: "
                "use that one, or choose another port",
            ) from error
        raise BrokerError(
            f"port {settings.port} on {settings.host} cannot be used ({error.strerror}): "
            "stop the program that uses it, or choose another port",
        ) from error


def _launch(kind: Kind, program: str | None, settings: LocalBroker, folder: Path) -> Broker:
    port, log = _free_port(settings), folder / f"{kind}.log"
    command = _command(settings, folder, port, program)
    process = start_program(command, log, stdin=subprocess.PIPE)
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        if _is_serving(settings.host, port, tls=settings.tls is not None):
            return Broker(kind, settings.host, port, process)
        time.sleep(0.02)
    ended = process.poll()
    process.kill()
    process.wait()
    what = f"ended with code {ended}" if ended is not None else f"did not serve {settings.host}:{port}"
    raise BrokerError(f"{kind} {what}; the end of its log ({log}):\n{last_lines(log)}")


def _is_serving(host: str, port: int, *, tls: bool) -> bool:
    """Return whether the broker replies; mosquitto accepts TCP connections before it is ready."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT) as connection:
            if not tls:
                connection.sendall(_CONNECT)
                return connection.recv(1) != b""
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.wrap_socket(connection).close()
            return True
    except OSError:
        return False
