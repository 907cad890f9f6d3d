"""Certificates from the door at a real Mosquitto: valid, expired, renewed, revoked, and of a new authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.brokers import fleet as folders
from sojourn.brokers import join_server as doors
from sojourn.brokers import maintenance
from sojourn.joining import client
from sojourn.joining.identity import NodeIdentity
from sojourn.links.settings import BrokerSettings, TlsSettings
from tests.sojourn.brokers.brokers import Node, make_hasty
from tests.sojourn.brokers.guarded_broker import GuardedBroker
from tests.sojourn.joining.open_door import DAY, OpenDoor, enrol, open_door
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[GuardedBroker]:
    with GuardedBroker(tmp_path / "fleet", passwords=False) as made:
        yield made


@pytest.fixture
def door(broker: GuardedBroker) -> Iterator[OpenDoor]:
    with open_door(broker.folder) as made:
        yield made


def way(broker: GuardedBroker, identity: NodeIdentity, *, trusting: NodeIdentity | None = None) -> BrokerSettings:
    """Return a device's connection settings, optionally with another device's trusted authorities."""
    own = str(identity.folder / "node.pem")
    authorities = str((trusting or identity).folder / "ca.pem")
    tls = TlsSettings(ca_file=authorities, certificate_file=own, key_file=own)
    return BrokerSettings(port=broker.listeners.certificate, tls=tls)


def test_joined_device_connects_until_it_is_revoked(broker: GuardedBroker, door: OpenDoor, tmp_path: Path) -> None:
    identity = enrol(door.invite(authorised=True), tmp_path / "pi")
    with Node(way(broker, identity), "pi-1") as node:
        assert node.ear.ups == 1
    with folders.locked(broker.folder):
        folders.revoke(broker.folder, "pi-1")
    broker.reload()
    broker.assert_refuses_certificate(way(broker, identity), "pi-1")


def test_expired_certificate_is_rejected_until_operator_accepts(
    broker: GuardedBroker, door: OpenDoor, tmp_path: Path
) -> None:
    """The same link retries and uses the new certificate automatically."""
    door.shift = -40 * DAY
    identity = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    before = broker.log_text()
    with Node(way(broker, identity), "pi-1", wait=False) as node:
        broker.assert_logs_again("certificate verify failed", before)
        assert node.ear.ups == 0
        assert client.come_back(identity, "a board") is not None
        door.accept("pi-1")
        assert client.come_back(identity, "a board") is None
        wait_until(lambda: node.ear.ups == 1, "a connection with the new certificate", lambda: node.ear.downs)


def test_both_authorities_are_accepted_during_replacement(
    broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_WATCH_SECONDS", 0.05)
    with open_door(broker.folder) as door:
        check_both_are_taken(broker, door, tmp_path)


def check_both_are_taken(broker: GuardedBroker, door: OpenDoor, tmp_path: Path) -> None:
    old = enrol(door.invite(authorised=True), tmp_path / "old", "old")
    with folders.locked(broker.folder):
        before = door.door._server
        assert maintenance.begin(broker.folder).joined == ["old"]
    # The door restarts with the new certificates.
    wait_until(lambda: door.door._server not in (before, None), "the door to open again")
    broker.stop()
    broker.start()
    new = enrol(door.invite(authorised=True), tmp_path / "new", "new")
    with Node(way(broker, old), "old") as first, Node(way(broker, new), "new") as second:
        assert (first.ear.ups, second.ear.ups) == (1, 1)
    with folders.locked(broker.folder):
        folders.revoke(broker.folder, "old")  # the old authority's list counts, too
        assert maintenance.finish(broker.folder).joined == []
    broker.stop()
    broker.start()
    with Node(way(broker, new), "new") as second:
        assert second.ear.ups == 1
        with Node(way(broker, old), "old", wait=False) as first:
            first.assert_reported("is not trusted")
            assert first.ear.ups == 0
        broker.assert_refuses_certificate(way(broker, old, trusting=new), "old")
