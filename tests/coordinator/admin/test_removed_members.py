"""Tests that a removed or revoked member leaves the roster and that a real broker retains nothing for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coordinator.admin.fleet_commands import app
from hierarchy.edge.server import EdgeServer
from sojourn.brokers.fleet import FLEET_FILE
from sojourn.links import session
from sojourn.links.link import Link, Will
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings
from sojourn.node.driver import Driver
from sojourn.node.node import Node
from sojourn.node.workers import ThreadWorkers
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack, unpack, unpack_blob
from sojourn.protocol.messages import Birth, Death, Roster
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Member
from sojourn.store.journal import MemoryStore
from tests.sojourn.brokers.brokers import Ear, make_hasty
from tests.sojourn.brokers.brokers import Node as Listening
from tests.sojourn.brokers.guarded_broker import FLEET, GuardedBroker
from tests.waiting import LIMIT, wait_until

EDGE, CLOUD = Address("edge", "s1"), Address("cloud", "cloud")
EPOCH = Epoch(3, b"epoch-no")


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    make_hasty(monkeypatch)


class Rosters(Ear):
    """The rosters that the coordinator receives, and the devices in the newest one."""

    @property
    def rosters(self) -> list[Roster]:
        messages = [unpack(payload, EDGE, CLOUD).message for payload in self.payloads]
        return [each for each in messages if isinstance(each, Roster)]

    @property
    def newest(self) -> set[str]:
        refs = [each.members for each in self.rosters]
        # a roster that was sent before has no inline data
        sent = {each.digest: each.inline for each in refs if each.inline}
        newest = sent.get(refs[-1].digest) if refs else None
        return {member.device for member in unpack_blob(newest, tuple[Member, ...])} if newest else set()


class SharedBroker(GuardedBroker):
    """A broker with a listening coordinator, a real edge server, and devices with a password and with a certificate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cloud = self.add_local("cloud", "cloud")
        self.edge = self.add_local("s1", "edge")
        self.devices = {"pi-1": self.add("pi-1"), "pi-2": self.add("pi-2", kind="certificate")}

    def command(self, *arguments: str) -> Result:
        """Run a command of `sojourn fleet`, and make the broker read its files again as an operator would."""
        done: list[Result] = []
        command = [*arguments, "--fleet-folder", str(self.folder)]
        thread = threading.Thread(target=lambda: done.append(CliRunner().invoke(app, command)))
        file = self.folder / FLEET_FILE
        before = file.read_text()
        thread.start()
        wait_until(lambda: file.read_text() != before, "the fleet's file, which is written after the broker's")
        self.reload()
        thread.join(LIMIT)
        return done[0]


class Born(Ear):
    """Publishes its birth on every connect, as a node does."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.topic = topics.state(FLEET, Address("device", name))

    def link_up(self, link: Link) -> None:
        super().link_up(link)
        link.publish(self.topic, pack(Packet(1, EPOCH, Birth())), retain=True)


def device(settings: BrokerSettings, name: str) -> tuple[MqttLink, Born]:
    ear, link = Born(name), MqttLink(settings, name)
    link.open(
        ear, [topics.inbox_filter(FLEET, Address("device", name))], Will(ear.topic, pack(Packet(2, EPOCH, Death())))
    )
    return link, ear


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SharedBroker]:
    with SharedBroker(tmp_path / "fleet") as made:
        yield made


@pytest.fixture
def rosters(broker: SharedBroker) -> Iterator[Rosters]:
    """The rosters that a site with two devices sends to its coordinator."""
    received, listening = Rosters(), MqttLink(broker.cloud, "cloud")
    listening.open(received, [topics.inbox_filter(FLEET, CLOUD)], None)
    wait_until(lambda: received.ups == 1, "the coordinator's connection")
    link = MqttLink(broker.edge, "s1")
    workers = ThreadWorkers(lambda work: work)
    driver = Driver(Node(FLEET, EdgeServer("s1", "cloud"), MemoryStore(), {"device": link, "cloud": link}, workers))
    thread = threading.Thread(target=driver.run)
    thread.start()
    yield received
    driver.stop()
    thread.join(LIMIT)
    listening.close()


@pytest.mark.parametrize(("what", "name"), [("remove", "pi-1"), ("remove", "pi-2"), ("revoke", "pi-2")])
def test_removed_member_leaves_roster_and_retained_topics(
    broker: SharedBroker, rosters: Rosters, monkeypatch: pytest.MonkeyPatch, what: str, name: str
) -> None:
    def kept_topics(reader: str, awaited: str) -> set[str]:
        """Return all retained topics, including inboxes, whose retained messages nodes ignore."""
        everything = [f"sojourn/1/{FLEET}/device/+/state", f"sojourn/1/{FLEET}/edge/s1/in/+"]
        with monkeypatch.context() as patch:
            patch.setattr(session, "is_state", lambda _: True)
            with Listening(broker.edge, reader, everything) as listening:
                wait_until(lambda: awaited in {topic for topic, _ in listening.ear.received}, awaited)
                return {topic for topic, _ in listening.ear.received}

    links = {each: device(settings, each) for each, settings in broker.devices.items()}
    wait_until(lambda: rosters.newest == {"pi-1", "pi-2"}, "both devices on the roster")
    (stays,) = {"pi-1", "pi-2"} - {name}
    inbox = topics.inbox(FLEET, EDGE, name)
    links[name][0].publish(inbox, b"kept at the broker", retain=True)
    assert kept_topics("before", inbox) == {inbox, links["pi-1"][1].topic, links["pi-2"][1].topic}
    done = broker.command(what, name, "--wait", str(LIMIT))
    assert (done.exit_code, f"the retained messages of {name} are deleted from the broker" in done.output) == (
        0,
        True,
    ), done.output
    wait_until(lambda: rosters.newest == {stays}, "a roster without it", lambda: rosters.rosters)
    wait_until(lambda: bool(links[name][1].downs), "the end of its connection")
    assert not links[stays][1].downs
    assert kept_topics("after", links[stays][1].topic) == {links[stays][1].topic}
    for link, _ in links.values():
        link.close()


def test_remove_reports_broker_that_needs_restart(broker: SharedBroker) -> None:
    command = ["remove", "pi-1", "--wait", "0", "--fleet-folder", str(broker.folder)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "has not reloaded its files: to delete the retained messages of pi-1, restart it" in done.output
