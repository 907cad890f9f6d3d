"""A fleet folder with a real mosquitto: which members can connect, publish and subscribe."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sojourn.brokers import fleet as folders
from sojourn.brokers.configuration import CONF
from sojourn.brokers.fleet import FleetFile
from sojourn.errors import ConfigError
from sojourn.links.settings import BrokerSettings, TlsSettings
from tests.sojourn.brokers.brokers import Node, make_hasty
from tests.sojourn.brokers.guarded_broker import FLEET, GuardedBroker

EDGE_INBOX = f"sojourn/1/{FLEET}/edge/s1/in"


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)


class SmallSite(GuardedBroker):
    """A broker with an edge server and two devices, one with a password and one with a certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.edge = self.add("s1", "edge")
        self.first = self.add("pi-1")
        self.second = self.add("pi-2", kind="certificate")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SmallSite]:
    with SmallSite(tmp_path / "fleet") as made:
        yield made


def refused(settings: BrokerSettings, name: str, *words: str) -> None:
    with Node(settings, name, wait=False) as node:
        node.assert_reported(*words)
        assert node.ear.ups == 0


def test_password_and_certificate_members_connect_over_tls(broker: SmallSite) -> None:
    with (
        Node(broker.edge, "s1", [f"{EDGE_INBOX}/+"]) as edge,
        Node(broker.first, "pi-1", [f"sojourn/1/{FLEET}/device/pi-1/in/+"]) as first,
        Node(broker.second, "pi-2") as second,
    ):
        first.link.publish(f"{EDGE_INBOX}/pi-1", b"from the first")
        second.link.publish(f"{EDGE_INBOX}/pi-2", b"from the second")
        edge.assert_receives(b"from the first")
        edge.assert_receives(b"from the second")
        edge.link.publish(f"sojourn/1/{FLEET}/device/pi-1/in/s1", b"to the first")
        first.assert_receives(b"to the first")


def test_wrong_or_missing_credentials_are_rejected(
    broker: SmallSite,
) -> None:
    tls = TlsSettings(ca_file=str(broker.folder / folders.CA_FILE))
    port = broker.listeners.password
    refused(BrokerSettings(port=port, tls=tls, username=""), "pi-1", "not authorised")
    refused(BrokerSettings(port=port, tls=tls, username="pi-1"), "pi-1", "not authorised")
    refused(BrokerSettings(port=port, tls=tls, username="pi-1", password="wrong"), "pi-1", "not authorised")
    refused(msgspec.structs.replace(broker.first, username="s1"), "s1", "not authorised")
    for username in ("", "pi-1"):
        local = BrokerSettings(host="127.0.0.1", port=broker.listeners.local, username=username)
        refused(local, "pi-1", "not authorised")
    refused(msgspec.structs.replace(broker.first, port=broker.listeners.certificate), "pi-1", "certificate")
    refused(msgspec.structs.replace(broker.first, tls=True), "pi-1", "is not trusted")
    refused(msgspec.structs.replace(broker.first, tls=False), "pi-1", "switch tls on")


def test_device_cannot_read_or_write_topics_of_others(broker: SmallSite) -> None:
    """pi-1 subscribes to topics that it must not read, and receives only its own messages."""
    everything = ["#", f"sojourn/1/{FLEET}/device/+/in/+", f"{EDGE_INBOX}/+", f"sojourn/1/{FLEET}/+/+/state"]
    with (
        Node(broker.edge, "s1", [f"{EDGE_INBOX}/+", f"sojourn/1/{FLEET}/device/+/state"]) as edge,
        Node(broker.second, "pi-2", [f"sojourn/1/{FLEET}/device/pi-2/in/+"]) as second,
        Node(broker.first, "pi-1", everything) as first,
    ):
        for topic in (
            f"{EDGE_INBOX}/pi-2",
            f"sojourn/1/{FLEET}/device/pi-2/in/s1",
            f"sojourn/1/{FLEET}/device/pi-2/in/pi-1",
            f"sojourn/1/{FLEET}/device/pi-2/state",
            f"sojourn/1/{FLEET}/cloud/cloud/in/pi-1",
            f"sojourn/1/{FLEET}/edge/s1/state",
            "sojourn/1/another/edge/s1/in/pi-1",
        ):
            first.link.publish(topic, b"a lie")
        first.link.publish(f"{EDGE_INBOX}/pi-1", b"the truth")
        edge.assert_receives(b"the truth")
        edge.link.publish(f"sojourn/1/{FLEET}/device/pi-2/in/s1", b"for the second")
        second.assert_receives(b"for the second")
        edge.link.publish(f"sojourn/1/{FLEET}/device/pi-1/in/s1", b"for the first")
        first.assert_receives(b"for the first")
        assert edge.ear.payloads == [b"the truth"]
        assert second.ear.payloads == [b"for the second"]
        # It receives its own message once for each matching filter, and nothing else.
        assert set(first.ear.payloads) == {b"for the first"}


def test_revoked_password_is_rejected_after_reload(broker: SmallSite) -> None:
    with (
        Node(broker.edge, "s1", [f"{EDGE_INBOX}/+"]) as edge,
        Node(broker.first, "pi-1") as first,
        Node(broker.second, "pi-2") as second,
    ):
        folders.revoke(broker.folder, "pi-1")
        broker.reload()
        first.assert_reported("lost")
        first.assert_reported("not authorised")
        second.link.publish(f"{EDGE_INBOX}/pi-2", b"still here")
        edge.assert_receives(b"still here")
        assert second.ear.downs == []
    refused(broker.first, "pi-1", "not authorised")


def test_revoked_certificate_is_rejected_after_reload(broker: SmallSite) -> None:
    with Node(broker.edge, "s1", [f"{EDGE_INBOX}/+"]) as edge, Node(broker.second, "pi-2") as second:
        folders.revoke(broker.folder, "pi-2")
        broker.reload()
        second.link.publish(f"{EDGE_INBOX}/pi-2", b"still here")
        second.assert_acknowledged()
        assert second.ear.downs == []
        with Node(broker.first, "pi-1") as first:
            first.link.publish(f"{EDGE_INBOX}/pi-1", b"the first")
            edge.assert_receives(b"the first")
        assert edge.ear.payloads == [b"the first"]
    broker.assert_refuses_certificate(broker.second, "pi-2")


def test_removed_certificate_stays_rejected_when_name_is_reused(broker: SmallSite) -> None:
    folders.remove(broker.folder, "pi-2")
    fleet = folders.read(broker.folder)
    assert "pi-2" not in fleet.members
    assert fleet.barred == ["pi-2"]
    broker.reload()
    broker.assert_refuses_certificate(broker.second, "pi-2")
    again = broker.add("pi-2", kind="certificate")
    assert folders.read(broker.folder).barred == []
    broker.reload()
    with Node(again, "pi-2") as node:
        assert (node.ear.ups, node.ear.downs) == (1, [])
    broker.assert_refuses_certificate(broker.second, "pi-2")


def test_renewed_credentials_invalidate_the_old_ones(broker: SmallSite) -> None:
    fresh = broker.add("pi-1", renew=True)
    broker.reload()
    with Node(fresh, "pi-1") as node:
        assert (node.ear.ups, node.ear.downs) == (1, [])
    refused(broker.first, "pi-1", "not authorised")


def test_node_cannot_take_client_id_of_another(broker: SmallSite) -> None:
    with Node(broker.first, "pi-1") as first, Node(broker.second, "pi-1") as second:
        first.link.publish(f"{EDGE_INBOX}/pi-1", b"still here")
        first.assert_acknowledged()
        assert (first.ear.ups, first.ear.downs) == (1, [])
        assert (second.ear.ups, second.ear.downs) == (1, [])


def test_packet_limit_is_set_and_largest_chunk_passes(broker: SmallSite) -> None:
    with Node(broker.edge, "s1", [f"{EDGE_INBOX}/+"]) as edge, Node(broker.first, "pi-1") as first:
        assert first.link.payload_limit == 256_000
        first.link.publish(f"{EDGE_INBOX}/pi-1", bytes(256_000))
        edge.assert_receives(bytes(256_000))
    conf = (broker.folder / "broker" / CONF).read_text().splitlines()
    assert "max_packet_size 300000" in conf
    assert "allow_anonymous false" in conf
    assert f"memory_limit {512 << 20}" in conf


def test_secret_files_are_private(tmp_path: Path) -> None:
    folders.create(tmp_path / "f", FleetFile(fleet="f", hosts=("h",)), signed_here=True)
    folders.admit(tmp_path / "f", "pi-1", "device", "password")
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "f").rglob("*") if each.is_file()}
    assert {"ca.key", "release.key", "passwords", "server.key", "fleet.toml"} <= modes.keys()
    assert not [name for name, mode in modes.items() if mode & 0o027]
    assert modes["ca.key"] == modes["release.key"] == 0o600


def test_invalid_fleet_commands_are_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    with pytest.raises(ConfigError, match="contains no fleet"):
        folders.read(folder)
    with pytest.raises(ConfigError, match="neither a host name nor an address"):
        folders.create(folder, FleetFile(fleet="f", hosts=("no host",)), signed_here=False)
    folders.create(folder, FleetFile(fleet="f", hosts=("192.0.2.7",)), signed_here=False)
    assert not (folder / folders.RELEASE_KEY).exists()
    with pytest.raises(ConfigError, match="already contains a fleet"):
        folders.create(folder, FleetFile(fleet="f", hosts=("h",)), signed_here=False)
    folders.admit(folder, "s1", "edge", "password")
    with pytest.raises(ConfigError, match="is already a member: --renew"):
        folders.admit(folder, "s1", "edge", "password")
    with pytest.raises(ConfigError, match="is already a member as edge"):
        folders.admit(folder, "s1", "device", "password", renew=True)
    with pytest.raises(ConfigError, match="is not a valid name"):
        folders.admit(folder, "Pi 1", "device", "password")
    with pytest.raises(ConfigError, match="'pi-9' is not a member"):
        folders.revoke(folder, "pi-9")


def test_revoked_member_keeps_its_name_until_removed(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folders.create(folder, FleetFile(fleet="f", hosts=("h",)), signed_here=False)
    folders.admit(folder, "pi-1", "device", "password")
    assert set(folders.password_hashes(folder)) == {"pi-1"}
    folders.revoke(folder, "pi-1")
    assert folders.password_hashes(folder) == {}
    assert "user pi-1\ntopic deny #\n" in (folder / "broker" / "acl").read_text()
    with pytest.raises(ConfigError, match="already"):
        folders.admit(folder, "pi-1", "device", "password")
    folders.remove(folder, "pi-1")
    folders.admit(folder, "pi-1", "device", "password")
    assert "deny" not in (folder / "broker" / "acl").read_text()
