"""What systemd hears of a service, on real sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from sojourn.brokers.run import start_broker
from sojourn.links.settings import LocalBroker
from sojourn.node.driver import Driver
from sojourn.notify import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


class Manager:
    """Listens like systemd."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(PATIENCE)
        self.heard: list[str] = []

    def hear(self) -> str:
        self.heard.append(self.socket.recv(4096).decode())
        return self.heard[-1]

    def wait_for(self, words: str) -> None:
        while not self.hear().startswith(words):
            pass

    def heard_in(self, seconds: float) -> list[str]:
        """Everything that comes in this time, and what had waited."""
        until, found = time.monotonic() + seconds, list[str]()
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                found.append(self.socket.recv(4096).decode())
            except (TimeoutError, BlockingIOError):
                break
        self.socket.settimeout(PATIENCE)
        return found


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@sojourn-test-{os.getpid()}"
    manager = Manager(address)
    yield manager
    manager.socket.close()


def environment(manager: Manager, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.address, **more}


def test_ready_status_and_stopping_are_heard(manager) -> None:
    notifier = Notifier.from_environment(environment(manager))
    notifier.ready()
    notifier.status("connected\nto two  brokers")
    notifier.status("connected to two brokers")
    notifier.stopping()
    assert [manager.hear() for _ in range(3)] == ["READY=1", "STATUS=connected to two brokers", "STOPPING=1"]


def test_the_pulse_is_half_of_the_watchdog_and_not_more_often(manager) -> None:
    notifier = Notifier.from_environment(environment(manager, WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid())))
    assert notifier.pulse == 2.0
    for now in (10.0, 11.9, 12.0, 13.0, 14.5):
        notifier.alive(now)
    notifier.stopping()
    assert [manager.hear() for _ in range(4)] == ["WATCHDOG=1"] * 3 + ["STOPPING=1"]


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
def test_without_a_watchdog_of_ours_there_is_no_pulse(tmp_path, more) -> None:
    manager = Manager(str(tmp_path / "notify"))
    notifier = Notifier.from_environment(environment(manager, **more))
    assert notifier.pulse is None
    notifier.alive(1e9)
    notifier.ready()
    assert manager.hear() == "READY=1"
    manager.socket.close()


def test_where_nobody_listens_nothing_happens(tmp_path) -> None:
    for notifier in (Notifier.from_environment({}), Notifier(str(tmp_path / "none"), 1.0)):
        notifier.ready()
        notifier.alive(0.0)
        notifier.close()
        notifier.stopping()
    assert list(tmp_path.iterdir()) == []


def test_waiting_on_purpose_is_no_hang(tmp_path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    Notifier(manager.address, 0.2).nap(0.5)
    assert manager.heard_in(0.1).count("WATCHDOG=1") >= 3
    manager.socket.close()


class Idle:
    """A node with nothing to do."""

    links: dict[str, object] = {}  # noqa: RUF012

    def start(self, _now, _report) -> None:
        pass

    def wake_at(self) -> None:
        return None

    def tick(self, _now) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_loop_that_hangs_gives_no_sign_of_life(tmp_path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    idle: Any = Idle()
    driver = Driver(idle)
    thread = threading.Thread(target=driver.run, args=(Notifier(manager.address, 0.2),))
    thread.start()
    hang, hangs = threading.Event(), threading.Event()
    try:
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")

        def stuck(_now: float) -> None:
            hangs.set()
            hang.wait(PATIENCE)

        driver.call(stuck)
        assert hangs.wait(PATIENCE)
        manager.heard_in(0.05)  # what was said before
        assert manager.heard_in(1.0) == []
        hang.set()
        manager.wait_for("WATCHDOG=1")
    finally:
        hang.set()
        driver.stop()
        thread.join()
    assert manager.heard_in(0.1)[-1] == "STOPPING=1"
    manager.socket.close()


def test_an_agent_is_ready_before_its_broker_is_and_says_when_it_is_connected(tmp_path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    np.savez(tmp_path / "data.npz", x=np.zeros((2, 4)), y=np.arange(2))
    broker = start_broker(LocalBroker(kind="mosquitto"), tmp_path / "broker")
    port = broker.port
    broker.stop()
    command = [
        sys.executable, "-m", "sojourn.cli", "agent", "run", "--name", "pi", "--data", str(tmp_path / "data.npz"),
        "--store", str(tmp_path / "store"), "--broker", f"127.0.0.1:{port}",
    ]  # fmt: skip
    agent = subprocess.Popen(command, env=os.environ | environment(manager, WATCHDOG_USEC="1000000"))
    try:
        assert [manager.hear() for _ in range(2)] == ["READY=1", "STATUS=not connected yet"]
        manager.wait_for(f"STATUS=no broker listens at 127.0.0.1:{port}")
        broker = start_broker(LocalBroker(kind="mosquitto", port=port), tmp_path / "broker")
        manager.wait_for("STATUS=connected")
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        broker.stop()
        manager.wait_for("STATUS=")
        assert manager.heard[-1] != "STATUS=connected"
        agent.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert agent.wait(PATIENCE) == 0
    finally:
        agent.kill()
        agent.wait()
        manager.socket.close()


@pytest.mark.parametrize("role", [("edge", "run", "--name", "edge"), ("coordinator", "run")])
def test_servers_are_ready_and_alive_too(tmp_path, role) -> None:
    manager = Manager(str(tmp_path / "notify"))
    flags = ("--store", str(tmp_path / "store"), "--broker", "127.0.0.1:1")
    command = [sys.executable, "-m", "sojourn.cli", *role, *flags]
    server = subprocess.Popen(command, env=os.environ | environment(manager, WATCHDOG_USEC="500000"))
    try:
        assert manager.hear() == "READY=1"
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        assert "STATUS=no broker listens at 127.0.0.1:1" in manager.heard
        server.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert server.wait(PATIENCE) == 0
    finally:
        server.kill()
        server.wait()
        manager.socket.close()
