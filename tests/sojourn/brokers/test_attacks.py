"""Attacks by members and strangers on a real mosquitto with a fleet's configuration."""

from __future__ import annotations

import contextlib
import re
import resource
import selectors
import socket
import ssl
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sojourn.links.settings import BrokerSettings, TlsSettings
from tests.sojourn.brokers.brokers import Node, make_hasty
from tests.sojourn.brokers.guarded_broker import FLEET, GuardedBroker
from tests.waiting import LIMIT, wait_until

INBOX = f"sojourn/1/{FLEET}/edge/s1/in"
LARGEST = 256_000
FLOOD = 1_100
STRANGERS = 3_200
FILES = 8_192
"""LimitNOFILE of the unit."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)


@pytest.fixture
def files() -> Iterator[None]:
    """Set the limit of open files of the broker's unit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Besieged(GuardedBroker):
    """A site's broker with the default listeners: certificates, and passwords only on its own machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, passwords=False)
        self.edge = self.add_local("s1", "edge")
        self.bad = self.add("bad", kind="certificate")
        self.good = [self.add(f"pi-{number}", kind="certificate") for number in range(2)]

    def memory(self) -> int:
        """Return the memory of the broker's process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.fixture
def broker(tmp_path: Path, files: None) -> Iterator[Besieged]:
    with Besieged(tmp_path / "fleet") as made:
        yield made


class RudeClient:
    """A malicious member: handwritten MQTT 3.1.1 with QoS 0, without a window or timeouts."""

    def __init__(self, settings: BrokerSettings) -> None:
        tls = settings.tls
        assert isinstance(tls, TlsSettings)
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.load_cert_chain(str(tls.certificate_file), tls.key_file)
        plain = socket.create_connection(("localhost", settings.effective_port), timeout=LIMIT)
        self._socket = context.wrap_socket(plain, server_hostname="localhost")
        self._send(0x10, b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x03any")
        assert self._socket.recv(4)[0] == 0x20

    def keep(self, topic: str, payload: bytes) -> None:
        """Publish a retained message."""
        self._send(0x31, struct.pack(">H", len(topic)) + topic.encode() + payload)

    def wait(self) -> None:
        """Wait until the broker has read all data."""
        self._send(0xC0, b"")
        assert self._socket.recv(2) == b"\xd0\x00"

    def close(self) -> None:
        self._socket.close()

    def _send(self, command: int, body: bytes) -> None:
        length, size = b"", len(body)
        while not length or size:
            size, digit = divmod(size, 128)
            length += bytes([digit | (128 if size else 0)])
        self._socket.sendall(bytes([command]) + length + body)


def has_received(node: Node, count: int) -> bool:
    return len(node.ear.received) >= count


def hung_up(stranger: ssl.SSLSocket) -> str:
    """Return how the broker ended the connection."""
    try:
        assert stranger.recv(1) == b""
    except OSError as error:
        return str(error)
    return "EOF"


def check_served(device: Node, edge: Node, name: str) -> None:
    """A device sends a message and the edge server receives it; neither was ever disconnected."""
    words = f"{name} {len(edge.ear.received)}".encode()
    device.link.publish(f"{INBOX}/{name}", words)
    edge.assert_receives(words)
    assert not device.ear.downs + edge.ear.downs


def test_flood_of_retained_messages_leaves_nothing_behind(broker: Besieged) -> None:
    with (
        Node(broker.edge, "s1", [f"{INBOX}/+", f"sojourn/1/{FLEET}/device/+/state"]) as edge,
        Node(broker.good[0], "pi-0") as good,
    ):
        before = broker.memory()
        bad = RudeClient(broker.bad)
        for number in range(FLOOD):  # to edge servers that there are not, as all could be before
            bad.keep(f"sojourn/1/{FLEET}/edge/s{number + 2}/in/bad", bytes(LARGEST))
        for number in range(FLOOD):  # as deep as topics go, since each level costs
            bad.keep(f"{INBOX}/bad{'/a' * 190}{number}", b"x")
        for number in range(20):  # where it may, again and again: to its edge server, and as its presence
            bad.keep(f"{INBOX}/bad", bytes(LARGEST))
            bad.keep(f"sojourn/1/{FLEET}/device/bad/state", bytes(LARGEST))
            # The queue of a slow reader also uses the broker's memory, but is not measured here.
            wait_until(partial(has_received, edge, 2 * (number + 1)), "the edge server to receive it")
        bad.wait()
        assert broker.memory() - before < 40 * LARGEST
        assert broker.process.poll() is None
        check_served(good, edge, "pi-0")
        bad.close()
        with Node(broker.good[1], "pi-1") as other:
            check_served(other, edge, "pi-1")


def crowd(port: int, count: int) -> list[socket.socket]:
    """Idle connections at once: the kernel queues a hundred until the broker accepts them."""
    made = [socket.socket() for _ in range(count)]
    with selectors.DefaultSelector() as waiting:
        for each in made:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
            waiting.register(each, selectors.EVENT_WRITE)
        while waiting.get_map():
            ready = waiting.select(LIMIT)
            assert ready, f"{len(waiting.get_map())} of {count} connections are not made"
            for key, _ in ready:
                waiting.unregister(key.fileobj)
    return made


def test_silent_clients_do_not_block_members(broker: Besieged) -> None:
    with Node(broker.edge, "s1", [f"{INBOX}/+"]) as edge, Node(broker.good[0], "pi-0") as good:
        strangers = crowd(broker.listeners.certificate, STRANGERS)
        check_served(good, edge, "pi-0")
        with Node(broker.good[1], "pi-1") as late:
            check_served(late, edge, "pi-1")
        assert broker.memory() < 256 << 20
        for stranger in strangers:
            stranger.close()


def test_client_without_certificate_is_dropped_before_its_packet(broker: Besieged) -> None:
    """With passwords, each could announce a packet of 300,000 bytes, for which the broker allocates memory at once."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with Node(broker.edge, "s1", [f"{INBOX}/+"]) as edge, Node(broker.good[0], "pi-0") as good:
        for _ in range(100):
            plain = socket.create_connection(("127.0.0.1", broker.listeners.certificate), timeout=LIMIT)
            with context.wrap_socket(plain) as stranger:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"\x10\xf0\xa6\x12")
                assert re.search(r"(?i)certificate.required|EOF|reset", hung_up(stranger))
        check_served(good, edge, "pi-0")


def test_full_certificate_listener_leaves_local_servers_served(tmp_path: Path, files: None) -> None:
    """A lower limit than in production, to save time."""
    broker = Besieged(tmp_path / "fleet")
    conf = tmp_path / "fleet" / "broker" / "mosquitto.conf"
    conf.write_text(conf.read_text().replace("max_connections 3800", "max_connections 20"))
    with broker, Node(broker.good[0], "pi-0") as good:
        strangers = [socket.create_connection(("127.0.0.1", broker.listeners.certificate)) for _ in range(60)]
        with Node(broker.edge, "s1", [f"{INBOX}/+"]) as edge:
            check_served(good, edge, "pi-0")
            before = broker.log_text()
            with Node(broker.good[1], "pi-1", wait=False) as late:
                late.assert_reported("")
                broker.assert_logs_again("max_connections exceeded", before)
                assert late.ear.ups == 0
                for stranger in strangers:
                    stranger.close()
                with Node(broker.good[1], "pi-1"):
                    check_served(good, edge, "pi-0")


def test_qos_2_and_topic_aliases_are_disabled(broker: Besieged) -> None:
    """The broker stores QoS 2 messages until their release, and topic aliases for the whole connection."""
    bad = RudeClient(broker.bad)
    bad._send(0x34, b"\x00\x01t\x00\x01x")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        bad.wait()
    bad.close()
    conf = (broker.folder / "broker" / "mosquitto.conf").read_text()
    assert conf.count("max_connections") == conf.count("listener ") == 2
    assert conf.count("max_topic_alias 0") == conf.count("max_qos 1") == 2
