"""`make test-homeassistant`: a real fleet on a real Mosquitto, seen by a real Home Assistant and its validators.

Home Assistant runs in a separate environment. The version that Python 3.11 can run knows no discovery by device yet:
a separate client does what later versions do, and makes a message for each component of a device's message.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from hierarchy.edge.home_assistant.payloads import ShownDevice, ShownRelease, discovery_payload, shown
from sojourn.brokers.acl import CLEANER
from sojourn.protocol import topics
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Offer
from tests.live import witness
from tests.live.live_fleet import FLEET, LiveFleet, job_text
from tests.live.test_live_home_assistant import DEVICES, HOME, SHOWN, HomeClient
from tests.waiting import LIMIT

SPLITTER = "splitter"
RULES = f"\nuser {SPLITTER}\ntopic readwrite homeassistant/#\ntopic readwrite sojourn/home-assistant/#\n"
SHARED = ("availability", "device", "origin", "state_topic")
ENTITIES = {
    "online": "binary_sensor.{}_online",
    "training": "binary_sensor.{}_training",
    "visits": "sensor.{}_visits",
    "loss": "sensor.{}_last_loss",
    "reason": "sensor.{}_last_reason",
}


class Splitter(HomeClient):
    """Makes the messages of single components out of those of devices, as Home Assistant 2024.12 does by itself."""

    def __init__(self, address: str) -> None:
        self._made: dict[str, list[str]] = {}
        self._work = threading.Lock()
        super().__init__(address, SPLITTER)

    def _receive(self, client, data, message) -> None:
        super()._receive(client, data, message)
        parts = message.topic.split("/")
        if parts[:2] != ["homeassistant", "device"]:
            return
        with self._work:
            for topic in self._made.pop(message.topic, []) if not message.payload else []:
                client.publish(topic, b"", qos=1, retain=True)
            if message.payload:
                self._made[message.topic] = [
                    self._split(client, parts[2], *each) for each in components(message.payload)
                ]

    @staticmethod
    def _split(client, identity: str, key: str, platform: str, config: dict[str, Any]) -> str:
        topic = f"homeassistant/{platform}/{identity}/{key}/config"
        client.publish(topic, json.dumps(config), qos=1, retain=True)
        return topic


def components(payload: bytes) -> list[tuple[str, str, dict[str, Any]]]:
    """The components of a device's message: name, platform, and configuration with what all of them share."""
    message = json.loads(payload)
    shared = {name: message[name] for name in SHARED}
    made = [(key, {**shared, **component}) for key, component in message["components"].items()]
    return [(key, config.pop("platform"), config) for key, config in made]


class HomeAssistant:
    """The process in which it runs."""

    def __init__(self, python: str, port: int, schemas: str) -> None:
        observer = str(Path(__file__).with_name("observer.py"))
        self._process = subprocess.Popen(
            [python, observer, str(port), HOME, schemas], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.version = self._answer()["version"]

    def _answer(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def ask(self, what: str, **more: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"ask": what, **more}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def state(self, device: str, key: str) -> str | None:
        """The state of an entity; None where there is none."""
        found = self.ask("states").get(ENTITIES[key].format(device.replace("-", "_")))
        return found[0] if found else None

    def release(self, device: str) -> list[str | None] | None:
        """The state of the entity of its release, and the version that it is to serve."""
        found: list[str | None] | None = self.ask("states").get(f"update.{device}_release_digits")
        return found

    def states(self, key: str) -> list[str | None]:
        return [self.state(device, key) for device in DEVICES]

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(LIMIT)


def shown_release(fleet: LiveFleet, home: HomeAssistant, received: Splitter) -> None:
    """A device with odd texts in its offer, serving a release: by our payloads, through the broker."""
    odd = Offer("\x1b[31m1\u202e", "<script>" * 20, "r", 1, 1, (), "d")
    payload = discovery_payload(FLEET, SHOWN, "odd", odd, ["digits"])
    assert not home.ask("schemas", payload=json.loads(payload))
    reason = shown("declined: hot: \u00e9\u202e\x00 {{ 1 / 0 }} " + "x" * 2000)
    state = ShownDevice(online=True, reason=reason, releases={"digits": ShownRelease("none", "2")})
    received.report(topics.device_state(FLEET, SHOWN, "odd"), state.encoded(), retain=True)
    identity = topics.object_id(FLEET, SHOWN, "odd")
    received.report(topics.discovery("homeassistant", identity), payload, retain=True)
    fleet.wait(lambda: home.release("odd") == ["on", "2"], "a release that is to be served")
    # Each entity is made from a separate message, and has its first state some time later.
    fleet.wait(lambda: home.state("odd", "reason") == reason, "the reason as it was sent")
    print("release ordered:", home.release("odd"), "reason:", str(home.state("odd", "reason"))[:40])
    served = ShownDevice(online=True, releases={"digits": ShownRelease("2", "2")})
    received.report(topics.device_state(FLEET, SHOWN, "odd"), served.encoded(), retain=True)
    fleet.wait(lambda: home.release("odd") == ["off", "2"], "a release that is served")
    fleet.wait(lambda: home.state("odd", "loss") == "unknown", "a loss that is not known")
    print("release served:", home.release("odd"), "loss:", home.state("odd", "loss"))


def followed(fleet: LiveFleet, home: HomeAssistant, received: Splitter) -> None:
    """What a person would look at, one after another; each line that is printed was seen by Home Assistant itself."""
    fleet.wait(lambda: home.states("online") == ["on", "on"], "two devices that are online")
    print("found: 2 devices, online:", home.states("online"), "visits:", home.states("visits"))
    configs = received.kept("homeassistant/device/")
    objections = {topic: home.ask("schemas", payload=json.loads(payload)) for topic, payload in configs.items()}
    assert len(configs) == len(DEVICES)
    assert not any(objections.values()), objections
    broken = json.loads(next(iter(configs.values())))
    broken["components"]["visits"]["state_class"] = "no such class"
    del broken["origin"]
    found = home.ask("schemas", payload=broken)
    assert len(found) >= 2, "validators that accept everything"
    print(f"validators: {len(configs)} messages without an objection; a broken one has {len(found)}: {found}")
    shown_release(fleet, home, received)
    job = job_text("shown", 1, devices=2).replace("sets = 2", "sets = 1").partition("[estimator]")[0]
    assert fleet.run(job, "shown").status == "done"
    # One to learn what its data is like, one to train.
    fleet.wait(lambda: home.states("visits") == ["2", "2"], "the visits of each device")
    print("after a round: visits", home.states("visits"), "loss", home.states("loss"), "reason", home.states("reason"))
    fleet.kill(SHOWN)
    fleet.wait(lambda: home.states("online") == ["unavailable", "unavailable"], "unavailable devices")
    print("edge server killed: online", home.states("online"), "visits", home.states("visits"))
    fleet.start(SHOWN)
    fleet.wait(lambda: home.states("online") == ["on", "on"] and home.states("visits") == ["2", "2"], "their return")
    print("edge server back: online", home.states("online"), "visits", home.states("visits"))
    fleet.kill("pi-1")
    fleet.wait(lambda: home.states("online") == ["on", "off"], "a device that is gone")
    print("one agent killed: online", home.states("online"))
    broker = fleet.brokers["cloud"]
    cleaner = HomeClient(f"{broker.host}:{broker.port}", CLEANER)
    cleaner.report(topics.state(FLEET, Address("device", "pi-1")), b"", retain=True)
    cleaner.close()
    fleet.wait(lambda: home.states("online") == ["on", None], "its removal")
    print("device removed: entities", [name for name in home.ask("entities") if "pi_" in name])


def main(python: str, schemas: str) -> None:
    witness.RULES += RULES
    with tempfile.TemporaryDirectory(prefix="sojourn-home-") as place:
        folder = Path(place)
        (folder / "edge.toml").write_text("[home_assistant]\ndiscovery = true\n")
        shows = {SHOWN: (str(folder / "edge.toml"),)}
        fleet = LiveFleet(folder, {SHOWN: DEVICES}, own_brokers=False, edge_flags=shows, homes=(HOME,))
        broker = fleet.brokers["cloud"]
        splitter = Splitter(f"{broker.host}:{broker.port}")
        home = None
        try:
            home = HomeAssistant(python, broker.port, schemas)
            print("Home Assistant", home.version)
            followed(fleet, home, splitter)
        finally:
            if home:
                home.close()
            splitter.close()
            fleet.stop()
    print("all seen")


if __name__ == "__main__":
    main(*sys.argv[1:3])
