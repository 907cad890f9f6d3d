"""From the first report that breaks a rule to the old model serving on every device that had the new one.

python -m benchmarks.rollback [--repeats 5]

Ten agents, two edge servers and a coordinator as processes on one Mosquitto. A release with wrong predictions is sent
to all ten at once (the first stage is the whole fleet), so every device is rolled back. The time of the first failing
report is its arrival at a subscriber of the broker; a device serves the old model when its `current` file names it.
Devices that still try the release at the first report never serve it. So there is a second measurement: a good release
that all ten serve, rolled back by an operator, from the command on.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from coordinator.releases.orders import orders_for
from sojourn.protocol.envelope import unpack
from sojourn.protocol.release import HealthRules, complaint
from sojourn.protocol.release_messages import ReleaseReport
from sojourn.protocol.topics import Address, read
from tests.live.live_fleet import FLEET
from tests.live.release_goods import digits_release, forgetful
from tests.live.released_fleet import DEVICES, ReleasedFleet
from tests.live.witness import NAME

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from coordinator.releases.file import ReleaseFile

RULES = HealthRules(soak=0.0, timeout=60.0)


class FirstComplaint:
    """Detect the first report of a version that breaks a rule."""

    def __init__(self, host: str, port: int) -> None:
        self.received = threading.Event()
        self.at = 0.0
        self.version = 0
        self._client = Client(CallbackAPIVersion.VERSION2, NAME, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.username_pw_set(NAME)
        self._client.on_message = self._message
        self._client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        self._client.connect(host, port)
        self._client.loop_start()

    def wait_for(self, version: int) -> None:
        """Wait for the next one."""
        self.version = version
        self.received.clear()

    def close(self) -> None:
        """Stop listening."""
        self._client.disconnect()
        self._client.loop_stop()

    def _message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        route = read(FLEET, message.topic)
        if route is None or route.node.role != "edge" or route.sender not in DEVICES or self.received.is_set():
            return
        report = unpack(message.payload, Address("device", route.sender), route.node).message
        ours = isinstance(report, ReleaseReport) and report.version == self.version
        if ours and report.health and complaint(report.health, RULES):
            self.at = time.monotonic()
            self.received.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fleet = ReleasedFleet(Path(folder))
        broker = fleet.brokers["cloud"]
        listening = FirstComplaint(broker.host, broker.port)
        try:
            _begin(fleet, digits_release(1))
            fleet.wait(lambda: fleet.current() == {1}, "the good release everywhere")
            fleet.end()
            times = [_measured(fleet, listening, 2 + number) for number in range(asked.repeats)]
            undone = [_undone(fleet, 100 + number) for number in range(asked.repeats)]
        finally:
            listening.close()
            fleet.stop()
    for what, taken in (("a bad release, sent to all devices", times), ("one that all serve, undone", undone)):
        each = ", ".join(f"{seconds:.2f}" for seconds in taken)
        middle = statistics.median(taken)
        print(f"{what}: median {middle:.2f} s, at most {max(taken):.2f} s (reach 5): {each}")


def _measured(fleet: ReleasedFleet, listening: FirstComplaint, version: int) -> float:
    listening.wait_for(version)
    _begin(fleet, forgetful(version))
    fleet.wait(listening.received.is_set, "a report that breaks a rule")
    # A device whose trial still runs gets the rollback before it serves the release.
    while fleet.current() != {1} or fleet.view().status != "rolled-back":
        time.sleep(0.002)
    done = time.monotonic()
    return done - listening.at


def _undone(fleet: ReleasedFleet, version: int) -> float:
    _begin(fleet, digits_release(version))
    fleet.wait(lambda: fleet.view().status == "done" and fleet.current() == {version}, "the release everywhere")
    with fleet.operator() as operator:
        operator.releases()  # connected
        begun = time.monotonic()
        operator.steer("digits", "rollback")
        while fleet.current() != {1}:
            time.sleep(0.002)
        done = time.monotonic()
    fleet.wait(lambda: fleet.view().status == "rolled-back", "the end of it")
    return done - begun


def _begin(fleet: ReleasedFleet, release: ReleaseFile) -> None:
    with fleet.operator() as operator:
        known = next(iter(operator.releases(release.card.line)), None)
        forward, back = orders_for(release, known, FLEET, fleet.signer)
        operator.rollout(forward, back, release, (1.0,), RULES)


if __name__ == "__main__":
    main()
