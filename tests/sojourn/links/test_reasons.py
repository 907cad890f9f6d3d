"""What a person is told when a link is down."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sojourn.brokers.run import start_broker
from sojourn.links.reasons import cannot_connect
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


def test_a_refusal_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sojourn")
    scripted = ScriptedBroker(lambda _: NOT_AUTHORISED_5, hang_up_on=5)
    with scripted as broker, Node(broker.settings, wait=False) as node:
        wait_until(lambda: len(broker.versions) >= 4, "four tries")
    assert len(node.ear.downs) == len(caplog.messages) == 1
    assert "not authorised" in node.ear.downs[0]
    assert set(broker.versions) == {5}


def test_nobody_there_and_no_such_host_are_told_in_words() -> None:
    (port,) = free_ports(1)
    with Node(BrokerSettings(host="127.0.0.1", port=port), wait=False) as node:
        node.assert_told(f"no broker listens at 127.0.0.1:{port}")
    for host in ("no-such-host.invalid", "two..dots"):
        with Node(BrokerSettings(host=host), wait=False) as node:
            node.assert_told(host, "cannot be resolved")


@pytest.mark.parametrize(("host", "hinted"), [("localhost", False), ("127.0.0.1", False), ("192.168.1.10", True)])
def test_a_broker_that_may_listen_for_its_own_machine_alone_is_hinted_at(host: str, hinted: bool) -> None:
    told = cannot_connect(BrokerSettings(host=host), ConnectionRefusedError())
    assert told.startswith(f"no broker listens at {host}:1883")
    assert ("unless its configuration has a `listener`" in told) == hinted


def test_a_second_client_of_the_same_name_is_told_of(tmp_path: Path) -> None:
    with ScriptedBroker(lambda _: ACCEPTED_5 + TAKEN_OVER_5) as broker, Node(broker.settings) as node:
        node.assert_told("same name")
    # Mosquitto 2.0 throws the first one out without a word.
    with (
        start_broker(LocalBroker(kind="mosquitto"), tmp_path) as mosquitto,
        Node(mosquitto.settings, "twin") as first,
        Node(mosquitto.settings, "twin"),
    ):
        first.assert_told("does another client use the name 'twin'?")


def test_a_refused_subscription_is_told() -> None:
    scripted = ScriptedBroker(lambda _: ACCEPTED_5 + SUBSCRIPTION_DENIED_5)
    with scripted as broker, Node(broker.settings, "node", ["secret/#"], wait=False) as node:
        node.assert_told("refused the subscription to secret/#")
    assert node.ear.ups == 0
