"""What a real Mosquitto makes of certificates from the door: good, ended, renewed, revoked, of a new authority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.brokers import authority
from sojourn.brokers import door as doors
from sojourn.brokers import fleet as folders
from sojourn.joining import asking
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
    """How a device connects, as its settings say; or with the authorities that another one trusts."""
    own = str(identity.folder / "node.pem")
    authorities = str((trusting or identity).folder / "ca.pem")
    tls = TlsSettings(ca_file=authorities, certificate_file=own, key_file=own)
    return BrokerSettings(port=broker.listeners.certificate, tls=tls)


def test_who_has_joined_connects_and_who_is_revoked_does_not(
    broker: GuardedBroker, door: OpenDoor, tmp_path: Path
) -> None:
    identity = enrol(door.invite(authorised=True), tmp_path / "pi")
    with Node(way(broker, identity), "pi-1") as node:
        assert node.ear.ups == 1
    with folders.alone(broker.folder):
        folders.revoke(broker.folder, "pi-1")
    broker.reload()
    broker.assert_refuses_certificate(way(broker, identity), "pi-1")


def test_an_ended_certificate_is_refused_until_an_operator_has_let_the_device_in_again(
    broker: GuardedBroker, door: OpenDoor, tmp_path: Path
) -> None:
    """The same link goes on trying, and takes up the new certificate by itself."""
    door.shift = -40 * DAY
    identity = enrol(door.invite(authorised=True), tmp_path / "pi")
    door.shift = 0.0
    before = broker.said()
    with Node(way(broker, identity), "pi-1", wait=False) as node:
        broker.assert_says_again("certificate verify failed", before)
        assert node.ear.ups == 0
        assert asking.come_back(identity, "a board") is not None
        door.accept("pi-1")
        assert asking.come_back(identity, "a board") is None
        wait_until(lambda: node.ear.ups == 1, "a connection with the new certificate", lambda: node.ear.downs)


def test_while_an_authority_is_replaced_certificates_of_both_are_taken(
    broker: GuardedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_WATCH_SECONDS", 0.05)
    with open_door(broker.folder) as door:
        check_both_are_taken(broker, door, tmp_path)


def check_both_are_taken(broker: GuardedBroker, door: OpenDoor, tmp_path: Path) -> None:
    old = enrol(door.invite(authorised=True), tmp_path / "old", "old")
    with folders.alone(broker.folder):
        before = door.door._server
        assert authority.begin(broker.folder).joined == ["old"]
    # The door closes for a moment, to open under the new certificates.
    wait_until(lambda: door.door._server not in (before, None), "the door to open again")
    broker.stop()
    broker.start()
    new = enrol(door.invite(authorised=True), tmp_path / "new", "new")
    with Node(way(broker, old), "old") as first, Node(way(broker, new), "new") as second:
        assert (first.ear.ups, second.ear.ups) == (1, 1)
    with folders.alone(broker.folder):
        folders.revoke(broker.folder, "old")  # the old authority's list counts, too
        assert authority.finish(broker.folder).joined == []
    broker.stop()
    broker.start()
    with Node(way(broker, new), "new") as second:
        assert second.ear.ups == 1
        with Node(way(broker, old), "old", wait=False) as first:
            first.assert_told("is not trusted")
            assert first.ear.ups == 0
        broker.assert_refuses_certificate(way(broker, old, trusting=new), "old")
