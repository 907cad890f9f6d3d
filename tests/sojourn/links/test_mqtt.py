"""The MQTT link, against real brokers and against one that misbehaves."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from paho.mqtt.client import ConnectFlags
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from sojourn.brokers.local_broker import Broker, start_broker
from sojourn.errors import Fault, LinkError
from sojourn.links import mqtt, session
from sojourn.links.link import PORTABLE_PAYLOAD, Link, Will
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings, LocalBroker, Protocol
from tests.ports import free_ports
from tests.sojourn.brokers.brokers import Ear, Node, ScriptedBroker, make_hasty
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
ACCEPTED_3 = b"\x20\x02\x00\x00"
WRONG_VERSION_3 = b"\x20\x02\x00\x01"


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(LocalBroker(kind="mosquitto"), tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


@pytest.fixture(scope="module")
def amqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start_broker(LocalBroker(kind="amqtt"), tmp_path_factory.mktemp("amqtt")) as broker:
        yield broker


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)


@pytest.fixture
def without_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links leave without waiting for acknowledgements, which never come."""
    monkeypatch.setattr(mqtt, "_FLUSH_SECONDS", 0.0)


@pytest.fixture
def without_collection() -> Iterator[None]:
    """Disable garbage collection."""
    gc.disable()
    yield
    gc.enable()


def at(broker: Broker, protocol: Protocol = "auto", max_payload: int | None = None) -> BrokerSettings:
    return BrokerSettings(host=broker.host, port=broker.port, protocol=protocol, max_payload=max_payload)


@pytest.mark.parametrize(
    ("kind", "protocol", "limit"),
    [
        ("mosquitto", "5", 256_000),
        ("mosquitto", "3.1.1", PORTABLE_PAYLOAD),
        ("mosquitto", "auto", 256_000),
        ("amqtt", "3.1.1", PORTABLE_PAYLOAD),
    ],
)
def test_messages_of_every_size_arrive_intact(
    request: pytest.FixtureRequest, kind: str, protocol: Protocol, limit: int
) -> None:
    settings = at(request.getfixturevalue(kind), protocol)
    sent = [bytes([n]) * size for n, size in enumerate((0, 1, 1_000, limit))]
    with Node(settings, "receiver", ["t/+"]) as receiver, Node(settings, "sender") as sender:
        assert sender.link.payload_limit == limit
        for payload in sent:
            sender.link.publish("t/x", payload)
        wait_until(lambda: len(receiver.ear.received) == len(sent), "all messages")
    assert sorted(receiver.ear.received) == sorted(("t/x", payload) for payload in sent)


def test_silence_after_mqtt_5_connect_falls_back_to_3(amqtt: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "_FIRST_CONNACK_TIMEOUT", 0.5)
    with Node(at(amqtt, "auto"), "self", ["t"]) as node:
        assert node.link.payload_limit == PORTABLE_PAYLOAD
        node.link.publish("t", b"received")
        node.assert_receives(b"received")
        assert node.ear.downs == []


def test_many_threads_publish_concurrently(mosquitto: Broker) -> None:
    with Node(at(mosquitto), "receiver", ["t"]) as receiver, Node(at(mosquitto), "sender") as sender:

        def report(first: int) -> None:
            for n in range(first, first + 250):
                sender.link.publish("t", n.to_bytes(2, "big"))

        threads = [threading.Thread(target=report, args=(first,)) for first in range(0, 2_000, 250)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(receiver.ear.received) == 2_000, "all messages")
    assert sorted(receiver.ear.payloads) == [n.to_bytes(2, "big") for n in range(2_000)]


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_retained_state_reaches_late_subscribers(request: pytest.FixtureRequest, kind: str) -> None:
    broker: Broker = request.getfixturevalue(kind)
    settings = broker.settings
    with Node(settings, "born") as born:
        born.link.publish("born/state", b"here", retain=True)
    with Node(settings, "later", ["+/state"]) as later:
        later.assert_receives(b"here")


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_retained_messages_in_an_inbox_are_not_replayed(mosquitto: Broker, protocol: Protocol) -> None:
    topic = f"replayed/{protocol}/in/bad"
    with Node(at(mosquitto), "bad") as bad:
        bad.link.publish(topic, b"of long ago", retain=True)
        with Node(at(mosquitto), "witness", [topic]) as witness:
            bad.link.publish(topic, b"kept, but received by connected clients", retain=True)
            witness.assert_receives(b"kept, but received by connected clients")
        settings = msgspec.structs.replace(at(mosquitto), protocol=protocol)
        with Node(settings, "later", [f"replayed/{protocol}/in/+", "+/state"]) as later:
            bad.link.publish(topic, b"new")
            later.assert_receives(b"new")
            assert later.ear.payloads.count(b"new") == 1
            assert b"kept, but received by connected clients" not in later.ear.payloads


def test_node_receives_its_own_message_sent_on_link_up(mosquitto: Broker) -> None:
    class Greeter(Ear):
        def link_up(self, link: Link) -> None:
            super().link_up(link)
            link.publish("self/in", b"hello")

    ear, link = Greeter(), MqttLink(at(mosquitto), "greeter")
    link.open(ear, ["self/in"], None)
    wait_until(lambda: ear.payloads == [b"hello"], "its own greeting")
    link.close()


def test_packet_limit_is_read_from_connack(tmp_path: Path) -> None:
    with start_broker(LocalBroker(kind="mosquitto", max_packet=131_072), tmp_path) as broker:
        settings = at(broker, "5", max_payload=1_000_000)
        with Node(settings, "receiver", ["t"]) as receiver, Node(settings, "sender") as sender:
            limit = sender.link.payload_limit
            assert limit == 131_072 - session.HEADER_ROOM
            with pytest.raises(LinkError, match=f"{limit + 1} bytes exceeds the {limit}"):
                sender.link.publish("t", bytes(limit + 1))
            sender.link.publish("t", bytes(limit))
            sender.link.publish("t", b"still here")
            receiver.assert_receives(b"still here")
            receiver.assert_receives(bytes(limit))
            assert sender.ear.downs == []
            assert sender.ear.ups == 1


def test_configured_limit_applies_if_broker_states_none(mosquitto: Broker) -> None:
    with Node(at(mosquitto, "3.1.1", max_payload=100_000)) as node:
        assert node.link.payload_limit == 100_000
        with pytest.raises(LinkError):
            node.link.publish("t", bytes(100_001))


def test_limit_is_known_before_the_first_connect() -> None:
    assert MqttLink(BrokerSettings(), "a").payload_limit == PORTABLE_PAYLOAD
    assert MqttLink(BrokerSettings(max_payload=2_000), "a").payload_limit == 2_000
    with pytest.raises(LinkError, match="topic"):
        MqttLink(BrokerSettings(), "a").publish("t" * 300, b"")


def test_link_reconnects_after_broker_is_killed(tmp_path: Path, hasty: None) -> None:
    # Not any free port: the system could give it to another program while the broker is stopped.
    first = start_broker(LocalBroker(kind="mosquitto", port=free_ports(1)[0]), tmp_path)
    settings = at(first)
    with Node(settings, "receiver", ["t"]) as receiver, Node(settings, "sender") as sender:
        sender.link.publish("t", b"before")
        receiver.assert_receives(b"before")
        os.kill(first.pid, signal.SIGKILL)
        receiver.assert_reported("lost")
        sender.assert_reported("lost")
        sender.link.publish("t", b"sent while disconnected")
        first.stop()
        with start_broker(LocalBroker(kind="mosquitto", port=first.port), tmp_path):
            wait_until(lambda: receiver.ear.ups == 2 and sender.ear.ups == 2, "both to come back")
            sender.link.publish("t", b"after")
            receiver.assert_receives(b"after")
    assert receiver.ear.payloads == [b"before", b"after"]


def test_unacknowledged_message_is_not_resent_after_reconnect(hasty: None, without_flush: None) -> None:
    with ScriptedBroker(lambda _: ACCEPTED_3) as broker, Node(broker.settings) as node:
        node.link.publish("t", b"never acknowledged")
        wait_until(lambda: broker.publishes == 1, "the first message")
        broker.cut()
        wait_until(lambda: node.ear.ups == 2, "the link to come back")
        node.link.publish("t", b"new")
        wait_until(lambda: broker.publishes == 2, "the second message")
        assert broker.last == b"new"


DYING_CLIENT = """
import sys, threading
from sojourn.links.settings import BrokerSettings
from sojourn.links.link import Will
from sojourn.links.mqtt import MqttLink
from tests.sojourn.brokers.brokers import Node
node = Node(BrokerSettings(host="127.0.0.1", port=int(sys.argv[1])), "dying", (), Will("state/dying", b"gone"))
print("up", flush=True)
threading.Event().wait()
"""


def test_will_is_published_when_a_process_is_killed(mosquitto: Broker) -> None:
    with Node(at(mosquitto), "watcher", ["state/dying"]) as watcher:
        command = [sys.executable, "-c", DYING_CLIENT, str(mosquitto.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.kill()
        watcher.assert_receives(b"gone")


def test_close_delivers_sent_messages_and_no_will(mosquitto: Broker) -> None:
    with Node(at(mosquitto), "watcher", ["state/closing", "t"]) as watcher:
        with Node(at(mosquitto), "closing", (), Will("state/closing", b"gone")) as closing:
            for n in range(200):
                closing.link.publish("t", n.to_bytes(2, "big") * 500)
        wait_until(lambda: len(watcher.ear.received) == 200, "all messages")
        with Node(at(mosquitto), "other") as other:
            other.link.publish("t", b"end")
            watcher.assert_receives(b"end")
        assert b"gone" not in watcher.ear.payloads
        assert closing.ear.downs == []


def test_closed_link_drops_messages_and_second_open_fails(mosquitto: Broker) -> None:
    with Node(at(mosquitto)) as node, pytest.raises(Fault):
        node.link.open(Ear(), [], None)
    node.link.close()
    node.link.publish("t", b"dropped")


def test_close_while_connecting_ends_the_connection() -> None:
    with ScriptedBroker(lambda _: b"") as broker, Node(broker.settings, wait=False) as node:
        wait_until(lambda: broker.versions == [5], "a connection")
        node.link.close()
        wait_until(lambda: broker.ended == 1, "its end")
        assert (broker.versions, node.ear.ups, node.ear.downs) == ([5], 0, [])


def test_lost_connection_leaks_no_client(hasty: None, without_flush: None, without_collection: None) -> None:
    with ScriptedBroker(lambda _: ACCEPTED_3) as broker, Node(broker.settings) as node:
        node.link.publish("t", bytes(60_000))
        session = node.link._session
        assert session is not None
        client = weakref.ref(session._client)
        del session
        broker.cut()
        wait_until(lambda: node.ear.ups == 2, "the link to come back")
        wait_until(lambda: client() is None, "the end of paho's client")


def test_accepted_connection_extends_subscription_deadline() -> None:
    identity = session.Identity("pi", "pi", None, None, ("t",), None)
    settings, version = BrokerSettings(), MQTTProtocolVersion.MQTTv5
    made = session.Session(settings, identity, version, lambda _: None, lambda *_: None, threading.Event(), 0.0)
    assert made._is_over()
    made._on_connect(made._client, None, ConnectFlags(False), ReasonCode(PacketTypes.CONNACK), None)
    assert not made._is_over()
    made._release()


def test_tcp_nodelay_is_set(mosquitto: Broker) -> None:
    with Node(at(mosquitto)) as node:
        session = node.link._session
        assert session is not None
        connection = session._client.socket()
        assert isinstance(connection, socket.socket)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.parametrize("refusal", [WRONG_VERSION_3, b""])
def test_mqtt_5_refusal_falls_back_to_3(refusal: bytes, hasty: None) -> None:
    with ScriptedBroker(lambda version: ACCEPTED_3 if version == 4 else refusal, hang_up_on=5) as broker:
        with Node(broker.settings) as node:
            assert broker.versions == [5, 4]
            assert node.link.payload_limit == PORTABLE_PAYLOAD
            broker.cut()
            wait_until(lambda: node.ear.ups == 2, "the link to come back")
        assert broker.versions == [5, 4, 4]


def test_idle_link_sleeps(mosquitto: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = []
    nap = session.Session._nap

    def counted(session: session.Session) -> float:
        naps.append(nap(session))
        return naps[-1]

    monkeypatch.setattr(session.Session, "_nap", counted)
    with Node(at(mosquitto), "idle", ["t"]) as idle:
        wait_until(lambda: naps[-1:] == [7.5], "the link to be idle")
        before = len(naps)
        with Node(at(mosquitto), "other") as other:
            other.link.publish("t", b"x")
            idle.assert_receives(b"x")
        # A message, its acknowledgement, and a few steps of the other link; a spinning loop naps thousands of times.
        assert len(naps) - before < 40
