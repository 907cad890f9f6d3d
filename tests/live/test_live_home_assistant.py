"""A real edge server and agents on a real Mosquitto with its access list, and a client in place of Home Assistant."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from sojourn.brokers.acl import CLEANER
from sojourn.protocol import topics
from sojourn.protocol.topics import Address
from tests.hierarchy.edge.home_assistant.documented import read_discovery
from tests.live.live_fleet import FLEET, LiveFleet, job_text
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOME = "home-assistant"
SHOWN, SILENT = "edge-1", "edge-2"
DEVICES = ["pi-0", "pi-1"]
FORGED = b"forged"


class HomeClient:
    """A client with Home Assistant's account: the newest message of each topic it receives, and how often."""

    def __init__(self, address: str, name: str = HOME) -> None:
        self.newest: dict[str, bytes] = {}
        self.fresh: Counter[str] = Counter()
        """Messages that were not retained."""
        self.forged: set[str] = set()
        """The topics on which a forged message was received."""
        self._subscribed = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name)
        self._client.username_pw_set(name)
        self._client.on_message = self._receive
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        host, _, port = address.rpartition(":")
        self._client.connect(host, int(port))
        self._client.loop_start()
        self._client.subscribe("#", qos=1)
        assert self._subscribed.wait(LIMIT)

    def _receive(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self.newest[message.topic] = bytes(message.payload)
        self.fresh[message.topic] += not message.retain
        if message.payload == FORGED:
            self.forged.add(message.topic)

    def report(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self._client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(LIMIT)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def state(self, device: str) -> dict[str, Any]:
        payload = self.newest.get(topics.device_state(FLEET, SHOWN, device))
        return json.loads(payload) if payload else {}

    def kept(self, words: str) -> dict[str, bytes]:
        newest = self.newest.copy()  # another thread adds to it
        return {topic: payload for topic, payload in newest.items() if words in topic and payload}


@contextmanager
def connected(fleet: LiveFleet, name: str = HOME) -> Iterator[HomeClient]:
    broker = fleet.brokers["cloud"]
    client = HomeClient(f"{broker.host}:{broker.port}", name)
    try:
        yield client
    finally:
        client.close()


def config(device: str) -> str:
    return topics.discovery("homeassistant", topics.object_id(FLEET, SHOWN, device))


def test_home_assistant_discovers_tracks_and_loses_devices(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text("[home_assistant]\ndiscovery = true\n")
    fleet = LiveFleet(
        tmp_path,
        {SHOWN: DEVICES, SILENT: []},
        own_brokers=False,
        edge_flags={SHOWN: (str(file),)},
        homes=(HOME,),
    )
    try:
        with connected(fleet) as home:
            fleet.wait(lambda: all(home.state(name).get("online") for name in DEVICES), "the devices' states")
            fleet.wait(lambda: len(home.kept("/config")) == len(DEVICES), "discovery")
            # Of its subscriptions, only what its account may read; nothing of the other edge.
            for topic in home.newest.copy():
                assert topic.startswith(("homeassistant/device/", f"sojourn/home-assistant/{FLEET}/{SHOWN}/")) or (
                    topic in {topics.state(FLEET, Address("edge", edge)) for edge in (SHOWN, SILENT)}
                ), topic
        with connected(fleet) as home:  # all of it is retained
            fleet.wait(lambda: set(home.kept("/config")) == {config(name) for name in DEVICES}, "retained discovery")
            assert not any(home.fresh[config(name)] for name in DEVICES)
            for name in DEVICES:
                found = read_discovery(home.newest[config(name)])
                assert found.device.name == name
                shown = {found.state_topic, found.availability[0].topic}
                fleet.wait(lambda shown=shown: shown <= home.newest.keys(), "what is retained of a device")
            _follows_a_job(fleet, home)
            _receives_again(fleet, home)
            _cannot_do_more(fleet, home)
            _survives(fleet, home)
            _loses_a_device(fleet, home)
    finally:
        fleet.stop()


def _follows_a_job(fleet: LiveFleet, home: HomeClient) -> None:
    assert {home.state(name)["visits"] for name in DEVICES} == {0}
    job = job_text("shown", 1, devices=2).replace("sets = 2", "sets = 1").partition("[estimator]")[0]
    assert fleet.run(job, "shown").status == "done"
    # A visit for the signature and one of the tour; a state in between may be shown while the device trains.
    states = lambda: [home.state(name) for name in DEVICES]  # noqa: E731
    fleet.wait(lambda: all(it["visits"] == 2 and not it["training"] for it in states()), "both visits of every device")
    for state in states():
        assert state["loss"] > 0
        assert (state["reason"], state["training"]) == ("", False)


def _receives_again(fleet: LiveFleet, home: HomeClient) -> None:
    assert not home.fresh[config("pi-0")]
    home.report("homeassistant/status", b"online")
    fleet.wait(lambda: all(home.fresh[config(name)] for name in DEVICES), "discovery, again")


def _cannot_do_more(fleet: LiveFleet, home: HomeClient) -> None:
    """The account can write only its status, not even what a device of its name could."""
    tried = [
        config("pi-0"), topics.device_state(FLEET, SHOWN, "pi-0"), topics.state(FLEET, Address("device", HOME)),
        topics.state(FLEET, Address("edge", SHOWN)), topics.inbox(FLEET, Address("edge", SHOWN), HOME),
    ]  # fmt: skip
    with connected(fleet, "witness") as witness:
        for topic in tried:
            home.report(topic, FORGED)
        for name, topic in (("pi-0", config("pi-0")), (SILENT, topics.device_state(FLEET, SHOWN, "pi-0"))):
            with connected(fleet, f"{name}x") as stranger:
                stranger.report(topic, FORGED)
        home.report("homeassistant/status", b"offline")  # the witness receives it after all earlier messages
        fleet.wait(lambda: bool(witness.fresh["homeassistant/status"]), "the permitted message")
        assert not witness.forged


def _survives(fleet: LiveFleet, home: HomeClient) -> None:
    """A killed edge server is shown as offline; the next one resumes from the retained messages."""
    presence = topics.state(FLEET, Address("edge", SHOWN))
    visits = {name: home.state(name)["visits"] for name in DEVICES}
    assert b"birth" in home.newest[presence]
    fleet.kill(SHOWN)
    fleet.wait(lambda: b"birth" not in home.newest[presence], "the last will of the edge server")
    before = home.fresh[config("pi-0")]
    fleet.start(SHOWN)
    fleet.wait(lambda: b"birth" in home.newest[presence] and home.fresh[config("pi-0")] > before, "its return")
    assert {name: home.state(name)["visits"] for name in DEVICES} == visits


def _loses_a_device(fleet: LiveFleet, home: HomeClient) -> None:
    fleet.wait(lambda: all(home.state(name)["online"] for name in DEVICES), "both devices at the new edge server")
    fleet.kill("pi-1")
    fleet.wait(lambda: not home.state("pi-1")["online"], "a device that is gone")
    assert config("pi-1") in home.kept("/config")
    with connected(fleet, CLEANER) as cleaner:
        cleaner.report(topics.state(FLEET, Address("device", "pi-1")), b"", retain=True)
    fleet.wait(lambda: not home.kept("_pi-1/config") and not home.kept("/pi-1/state"), "the removal of a device")
    before = home.fresh[config("pi-0")]
    home.report("homeassistant/status", b"online")  # everything that there is to discover is sent again
    fleet.wait(lambda: home.fresh[config("pi-0")] > before, "discovery of what is left")
    assert set(home.kept("/config")) == {config("pi-0")}
    assert home.state("pi-0")["online"]
