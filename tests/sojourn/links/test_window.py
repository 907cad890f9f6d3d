"""How much an MQTT link has in flight, and how much it queues."""

from __future__ import annotations

import pytest

from sojourn.links import mqtt, session
from tests.sojourn.brokers.brokers import Node, ScriptedBroker
from tests.waiting import wait_until

ACCEPTED_3 = b"\x20\x02\x00\x00"
ACCEPTED_5_RECEIVES_3 = b"\x20\x06\x00\x00\x03\x21\x00\x03"


@pytest.fixture(autouse=True)
def without_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links leave without waiting for acknowledgements, which never come."""
    monkeypatch.setattr(mqtt, "_FLUSH_SECONDS", 0.0)


def test_in_flight_messages_stay_within_broker_receive_maximum() -> None:
    with ScriptedBroker(lambda _: ACCEPTED_5_RECEIVES_3) as broker, Node(broker.settings) as node:
        for n in range(10):
            node.link.publish("t", bytes([n]))
        wait_until(lambda: broker.publishes == 3, "three messages")
        node.link.close()
        wait_until(lambda: broker.ended == len(broker.versions), "all to be read")
        assert broker.publishes == 3


def test_in_flight_bytes_stay_within_slow_uplink_budget() -> None:
    with ScriptedBroker(lambda _: ACCEPTED_3) as broker, Node(broker.settings) as node:
        for _ in range(40):
            node.link.publish("t", bytes(60_000))
        allowed = 60 * session.SLOWEST_UPLINK // 60_001
        wait_until(lambda: broker.publishes == allowed, "as many as fit")
        node.link.close()
        wait_until(lambda: broker.ended == len(broker.versions), "all to be read")
        assert broker.publishes == allowed


def test_unsent_queue_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(session, "MAX_UNSENT", 1_000_000)
    with ScriptedBroker(lambda _: ACCEPTED_3, deaf=True) as broker, Node(broker.settings) as node:
        for _ in range(40):
            node.link.publish("t", bytes(50_000))
        running = node.link._session
        assert running is not None
        assert running._window._unsent == 19 * 50_001
    assert sum("more slowly" in message for message in caplog.messages) == 1
