"""Notifications of a service to systemd, on real sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn import notify
from sojourn.brokers.local_broker import start_broker
from sojourn.links.settings import LocalBroker
from sojourn.node.driver import Driver
from sojourn.notify import Notifier
from tests.ports import free_ports
from tests.waiting import LIMIT, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WATCHDOG = "2000000"
"""Microseconds. Linux queues ten datagrams for a reader, and a service drops further ones: watchdog signals must be
rare enough that a stalled test misses none."""


class Manager:
    """Listens like systemd, and queues the messages until they are read."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.received: list[str] = []
        self._read = 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def receive(self) -> str:
        """Return the next unread message."""
        wait_until(lambda: len(self.received) > self._read, "another word", lambda: self.received)
        self._read += 1
        return self.received[self._read - 1]

    def wait_for(self, words: str) -> str:
        """Read messages until this one arrives."""
        while not (found := self.receive()).startswith(words):
            pass
        return found

    def unread(self) -> list[str]:
        """Return all unread messages; datagrams keep their order."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.sendto(b"MARK", self._socket.getsockname())
        found = []
        while (words := self.receive()) != "MARK":
            found.append(words)
        return found

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while words := self._socket.recv(4096):
            self.received.append(words.decode())


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@sojourn-test-{os.getpid()}"
    manager = Manager(address)
    yield manager
    manager.close()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(str(tmp_path / "notify"))
    yield manager
    manager.close()


def environment(manager: Manager, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, **more}


def test_ready_status_and_stopping_are_sent(manager) -> None:
    notifier = Notifier.from_environment(environment(manager))
    notifier.ready()
    notifier.status("connected\nto two  brokers")
    notifier.status("connected to two brokers")
    notifier.stopping()
    assert [manager.receive() for _ in range(3)] == ["READY=1", "STATUS=connected to two brokers", "STOPPING=1"]


def test_watchdog_is_notified_at_half_its_interval(manager) -> None:
    notifier = Notifier.from_environment(environment(manager, WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid())))
    assert notifier.interval == 2.0
    for now in (10.0, 11.9, 12.0, 13.0, 14.5):
        notifier.alive(now)
    notifier.stopping()
    assert [manager.receive() for _ in range(4)] == ["WATCHDOG=1"] * 3 + ["STOPPING=1"]


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_pulse_is_off_without_a_watchdog_for_this_process(listening, more) -> None:
    notifier = Notifier.from_environment(environment(listening, **more))
    assert notifier.interval is None
    notifier.alive(1e9)
    notifier.ready()
    assert listening.receive() == "READY=1"


def test_notifier_without_a_socket_does_nothing(tmp_path) -> None:
    for notifier in (Notifier.from_environment({}), Notifier(str(tmp_path / "none"), 1.0)):
        notifier.ready()
        notifier.alive(0.0)
        notifier.close()
        notifier.stopping()
    assert list(tmp_path.iterdir()) == []


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_intended_wait_keeps_notifying_the_watchdog(listening, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(notify, "time", clock)
    Notifier(listening.address, 4.0).nap(9.0)
    assert clock.now == 109.0
    assert listening.unread() == ["WATCHDOG=1"] * 5  # after 0, 2, 4, 6 and 8 seconds


class Idle:
    """An idle node."""

    links: dict[str, object] = {}  # noqa: RUF012

    def start(self, _now, _report) -> None:
        pass

    def wake_at(self) -> None:
        return None

    def tick(self, _now) -> None:
        pass

    def close(self) -> None:
        pass


def test_hanging_loop_stops_notifying_the_watchdog(listening) -> None:
    idle: Any = Idle()
    driver = Driver(idle)
    thread = threading.Thread(target=driver.run, args=(Notifier(listening.address, 0.2),))
    thread.start()
    hang, hangs = threading.Event(), threading.Event()
    try:
        for _ in range(3):
            listening.wait_for("WATCHDOG=1")

        def stuck(_now: float) -> None:
            hangs.set()
            hang.wait(LIMIT)

        driver.call(stuck)
        assert hangs.wait(LIMIT)
        listening.unread()  # earlier messages
        assert not hang.wait(0.5)  # five times as long as between two signs of life
        assert listening.unread() == []
        hang.set()
        listening.wait_for("WATCHDOG=1")
    finally:
        hang.set()
        driver.stop()
        thread.join()
    assert listening.unread()[-1] == "STOPPING=1"


def test_agent_is_ready_before_its_broker_connects(listening, tmp_path) -> None:
    manager = listening
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 4)), y=np.arange(2))
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "sojourn.cli", "agent", "run", "--name", "pi", "--data", str(tmp_path / "data.npz"),
        "--store", str(tmp_path / "store"), "--broker", f"127.0.0.1:{port}",
    ]  # fmt: skip
    agent = subprocess.Popen(command, env=os.environ | environment(manager, WATCHDOG_USEC=WATCHDOG))
    try:
        assert [manager.receive() for _ in range(2)] == ["READY=1", "STATUS=not connected yet"]
        manager.wait_for(f"STATUS=no broker listens at 127.0.0.1:{port}")
        broker = start_broker(LocalBroker(kind="mosquitto", port=port), tmp_path / "broker")
        manager.wait_for("STATUS=connected")
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        broker.stop()
        assert manager.wait_for("STATUS=") != "STATUS=connected"
        agent.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert agent.wait(LIMIT) == 0
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize("role", [("edge", "run", "--name", "edge"), ("coordinator", "run")])
def test_servers_notify_ready_and_watchdog(listening, tmp_path, role) -> None:
    manager = listening
    flags = ("--store", str(tmp_path / "store"), "--broker", "127.0.0.1:1")
    command = [sys.executable, "-m", "sojourn.cli", *role, *flags]
    server = subprocess.Popen(command, env=os.environ | environment(manager, WATCHDOG_USEC=WATCHDOG))
    try:
        assert manager.receive() == "READY=1"
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        wait_until(lambda: "STATUS=no broker listens at 127.0.0.1:1" in manager.received, "why there is no connection")
        server.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert server.wait(LIMIT) == 0
    finally:
        server.kill()
        server.wait()
