"""Two agents of one name on a real broker: the edge server detects them, but not a restart of one."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from edge_agent.agent import Agent
from hierarchy.edge.server import EdgeServer
from sojourn.brokers.local_broker import start_broker
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings, LocalBroker
from sojourn.node.driver import Driver
from sojourn.node.node import Node
from sojourn.store.journal import MemoryStore
from tests.sojourn.brokers.brokers import make_hasty
from tests.sojourn.node.test_node import FLEET, OFFER, IdleWorkers
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sojourn.node.machine import Machine


@contextmanager
def running(machine: Machine, broker: BrokerSettings, store: MemoryStore | None = None) -> Iterator[Driver]:
    """Run a node on a broker until the end of the block."""
    link = MqttLink(broker, machine.address.name)
    links = dict.fromkeys(("device", "edge", "cloud"), link)
    driver = Driver(Node(FLEET, machine, store or MemoryStore(), links, IdleWorkers()))  # type: ignore[arg-type]
    thread = threading.Thread(target=driver.run)
    thread.start()
    try:
        yield driver
    finally:
        driver.stop()
        thread.join()


def an_agent() -> Agent:
    return Agent("pi-1", OFFER, edges=frozenset({"e"}))


def test_name_clash_is_detected_and_restarts_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)
    with start_broker(LocalBroker(kind="mosquitto"), tmp_path) as broker, ExitStack() as nodes:
        settings = BrokerSettings(host=broker.host, port=broker.port)
        edge, store = EdgeServer("e", "c"), MemoryStore()
        nodes.enter_context(running(edge, settings))
        members = edge.roster.members
        for boot in range(1, 6):
            with running(an_agent(), settings, store):
                wait_until(lambda: "pi-1" in members and members["pi-1"].epoch.count == boot, "the agent to be online")  # noqa: B023
                assert not members["pi-1"].clash
            wait_until(lambda: "pi-1" not in members, "the agent to be offline")
        for _ in range(2):
            nodes.enter_context(running(an_agent(), settings))
        wait_until(lambda: "pi-1" in members and members["pi-1"].clash, "the edge server knows of two agents")
        assert edge.roster.wake_at() is not None
