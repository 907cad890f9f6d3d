"""The messages for users when a link is down."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sojourn.brokers.local_broker import start_broker
from sojourn.links.connection_errors import cannot_connect
from sojourn.links.settings import BrokerSettings, LocalBroker
from tests.ports import free_ports
from tests.sojourn.brokers.brokers import Node, ScriptedBroker, make_hasty
from tests.waiting import wait_until

NOT_AUTHORISED_5 = b"\x20\x03\x00\x87\x00"
ACCEPTED_5 = b"\x20\x03\x00\x00\x00"
TAKEN_OVER_5 = b"\xe0\x02\x8e\x00"
SUBSCRIPTION_DENIED_5 = b"\x90\x04\x00\x01\x00\x87"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)


def test_refusal_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sojourn")
    scripted = ScriptedBroker(lambda _: NOT_AUTHORISED_5, hang_up_on=5)
    with scripted as broker, Node(broker.settings, wait=False) as node:
        wait_until(lambda: len(broker.versions) >= 4, "four tries")
    assert len(node.ear.downs) == len(caplog.messages) == 1
    assert "not authorised" in node.ear.downs[0]
    assert set(broker.versions) == {5}


def test_closed_port_and_unknown_host_are_explained() -> None:
    (port,) = free_ports(1)
    with Node(BrokerSettings(host="127.0.0.1", port=port), wait=False) as node:
        node.assert_reported(f"no broker listens at 127.0.0.1:{port}")
    for host in ("no-such-host.invalid", "two..dots"):
        with Node(BrokerSettings(host=host), wait=False) as node:
            node.assert_reported(host, "cannot resolve the host name")


@pytest.mark.parametrize(("host", "hinted"), [("localhost", False), ("127.0.0.1", False), ("192.168.1.10", True)])
def test_remote_refusal_suggests_a_missing_listener(host: str, hinted: bool) -> None:
    reason = cannot_connect(BrokerSettings(host=host), ConnectionRefusedError())
    assert reason.startswith(f"no broker listens at {host}:1883")
    assert ("unless its configuration has a `listener`" in reason) == hinted


def test_second_client_of_same_name_is_reported(tmp_path: Path) -> None:
    with ScriptedBroker(lambda _: ACCEPTED_5 + TAKEN_OVER_5) as broker, Node(broker.settings) as node:
        node.assert_reported("same name")
    # Mosquitto 2.0 disconnects the first one without a reason.
    with (
        start_broker(LocalBroker(kind="mosquitto"), tmp_path) as mosquitto,
        Node(mosquitto.settings, "twin") as first,
        Node(mosquitto.settings, "twin"),
    ):
        first.assert_reported("does another client use the name 'twin'?")


def test_refused_subscription_is_reported() -> None:
    scripted = ScriptedBroker(lambda _: ACCEPTED_5 + SUBSCRIPTION_DENIED_5)
    with scripted as broker, Node(broker.settings, "node", ["secret/#"], wait=False) as node:
        node.assert_reported("refused the subscription to secret/#")
    assert node.ear.ups == 0
