"""A broker of one's own, started as a child process, for demo and development."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Literal, Self

from sojourn.brokers.configuration import CONF, local_conf
from sojourn.brokers.passwords import password_file
from sojourn.errors import BrokerError
from sojourn.links.settings import OWN_BROKER_PAYLOAD, BrokerSettings
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from sojourn.links.settings import LocalBroker

_LOG = logging.getLogger(__name__)
_START_SECONDS = 60.0
"""A broker that cannot start ends, and is not waited for; one that starts on a busy machine takes its time."""
_ANSWER_SECONDS = 1.0
_STOP_SECONDS = 3.0
_TRIES_FOR_A_FREE_PORT = 5
_PR_SET_PDEATHSIG = 1
_CONNECT = b"\x10\x18\x00\x04MQTT\x04\x82\x00\x3c\x00\x05probe\x00\x05probe"
"""An MQTT 3.1.1 CONNECT; any answer to it will do."""
# Debian keeps it in a folder that only root has on PATH.
_USUAL_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/bin", "/usr/local/bin")

Kind = Literal["mosquitto", "amqtt"]


class Broker:
    """A running broker; leave the `with` block, or call `stop`, to end it."""

    def __init__(self, kind: Kind, host: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.kind = kind
        self.host = host
        self.port = port
        self._process = process
        atexit.register(self.stop)

    @property
    def settings(self) -> BrokerSettings:
        """How to reach it, for those who need no password and no certificate."""
        if self.kind == "mosquitto":
            return BrokerSettings(host=self.host, port=self.port)
        # Asked for MQTT 5, amqtt is silent, and in 3.1.1 no broker states its limit; of amqtt we know that it has none.
        return BrokerSettings(host=self.host, port=self.port, protocol="3.1.1", max_payload=OWN_BROKER_PAYLOAD)

    @property
    def pid(self) -> int:
        """The id of the broker's process."""
        return self._process.pid

    def stop(self) -> None:
        """End the broker's process; a second call does nothing."""
        atexit.unregister(self.stop)
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def start_broker(settings: LocalBroker, folder: Path) -> Broker:
    """Start mosquitto, or amqtt where it is not installed, and return once it accepts connections."""
    kind, program = _choose(settings)
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(_TRIES_FOR_A_FREE_PORT - 1 if settings.port == 0 else 0):
        try:
            return _launch(kind, program, settings, folder)
        except BrokerError as error:
            # Between picking a free port and using it someone else may have taken it.
            if "address already in use" not in str(error).lower():
                raise
    return _launch(kind, program, settings, folder)


def find_mosquitto() -> str | None:
    """Where mosquitto is installed, if it is."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_USUAL_FOLDERS))


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
        _LOG.warning(
            "mosquitto was not found; using amqtt (pure Python; for demo and development only). "
            "Install mosquitto for anything else.",
        )
    return "amqtt", None


def _command(settings: LocalBroker, folder: Path, port: int, mosquitto: str | None) -> list[str]:
    if mosquitto is None:
        return [sys.executable, "-m", "sojourn.brokers.amqtt", settings.host, str(port)]
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
    """A port that can be had: the one asked for, or any."""
    try:
        family, *_, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            port: int = probe.getsockname()[1]
            return port
    except OSError as error:
        if _answers(settings.host, settings.port, tls=settings.tls is not None):
            raise BrokerError(
                f"a broker listens on {settings.host}:{settings.port} already, perhaps Debian's own Mosquitto: "
                "use that one and start no other, or choose another port",
            ) from error
        raise BrokerError(
            f"port {settings.port} on {settings.host} cannot be used ({error.strerror}): "
            "stop the program that uses it, or choose another port",
        ) from error


def _launch(kind: Kind, program: str | None, settings: LocalBroker, folder: Path) -> Broker:
    port, log = _free_port(settings), folder / f"{kind}.log"
    command = _command(settings, folder, port, program)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for us: nodes still need their broker to say goodbye.
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509  # one system call, in a library that is loaded already
        )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(settings.host, port, tls=settings.tls is not None):
            return Broker(kind, settings.host, port, process)
        time.sleep(0.02)
    ended = process.poll()
    process.kill()
    process.wait()
    what = f"ended with code {ended}" if ended is not None else f"did not serve {settings.host}:{port}"
    last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
    raise BrokerError(f"{kind} {what}; the end of its log ({log}):\n{last}")


def _answers(host: str, port: int, *, tls: bool) -> bool:
    """Whether it serves; mosquitto accepts connections before it knows that it will."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_SECONDS) as connection:
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


def die_with_parent() -> Callable[[], None] | None:
    """Linux ends the child when the thread that started it ends, so only the main thread may ask for that."""
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
