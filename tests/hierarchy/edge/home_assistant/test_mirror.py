"""When and how often the edge server publishes for Home Assistant, and what."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hierarchy.edge.home_assistant import mirror
from hierarchy.edge.home_assistant.mirror import (
    ANNOUNCE_INTERVAL,
    BATCH,
    ECHO_SECONDS,
    SETTLING_SECONDS,
    STATE_INTERVAL,
    HomeMirror,
)
from hierarchy.edge.home_assistant.payloads import ShownDevice, ShownRelease
from hierarchy.edge.server import EdgeServer
from sojourn.node.machine import ForeignMessage, LinkUp, Log, NodeRemoved, Present, Publish, Received, TimerFired
from sojourn.protocol import topics
from sojourn.protocol.messages import Birth, Death, Declined, Progress, TourCancel
from sojourn.protocol.release import Order, SignedOrder
from sojourn.protocol.release_messages import ReleaseReport, Ship
from sojourn.protocol.wire import Epoch, Offer
from tests.hierarchy.edge.home_assistant.documented import read_discovery
from tests.hierarchy.edge.site_bench import CLOUD, EPOCH, Bench, device, tour, tour_id, visit_id

FLEET = "f"
OFFER = Offer("0.9.0", "Raspberry Pi 4", "onnxruntime 1.20", 4, 1 << 30, ("plain",), "digits")
BEGUN = SETTLING_SECONDS + 0.001


class Home(Bench):
    """An edge server that shows its devices, and its retained messages at the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.home = HomeMirror(FLEET, "e")
        self.edge = EdgeServer("e", "c", self.home)
        self.kept: dict[str, bytes] = {}
        self.published: list[str] = []
        self.logged: list[str] = []

    def handle(self, event, now=0.0):
        effects = super().handle(event, now)
        for effect in effects:
            if isinstance(effect, Publish):
                assert effect.role == "device"
                self.kept[effect.topic] = effect.payload
                self.published.append(effect.topic)
            elif isinstance(effect, Log):
                self.logged.append(effect.text)
        return effects

    def born(self, name: str, now=0.0, epoch: Epoch = EPOCH, offer=OFFER) -> None:
        self.handle(Present(device(name), epoch, Birth(offer)), now)

    def begun(self, *names: str) -> float:
        """Bring the link up with these devices online, and announce them all."""
        self.handle(LinkUp())
        for name in names:
            self.born(name)
        self.wake(BEGUN)
        return BEGUN

    def wake(self, now: float) -> None:
        self.handle(TimerFired(), now)

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kept[topics.device_state(FLEET, "e", name)])
        return found

    def config(self, name: str) -> bytes:
        return self.kept[discovery(name)]


def discovery(name: str) -> str:
    return topics.discovery("homeassistant", topics.object_id(FLEET, "e", name))


def order(line: str, version: int) -> SignedOrder:
    return SignedOrder(msgspec.msgpack.encode(Order(FLEET, line, 1, version, None)), bytes(64))


def test_nothing_is_published_without_the_setting() -> None:
    bench = Bench()
    effects = [
        bench.handle(LinkUp()),
        bench.handle(Present(device("a"), EPOCH, Birth(OFFER))),
        bench.handle(TimerFired(), 99.0),
    ]
    effects.append(bench.handle(ForeignMessage("homeassistant/status", b"online"), 99.0))
    assert not [each for those in effects for each in those if isinstance(each, Publish)]


def test_device_is_announced_once_after_the_settling_time() -> None:
    home = Home()
    home.handle(LinkUp())
    home.born("a")
    home.wake(SETTLING_SECONDS / 2)
    assert not home.kept
    home.wake(BEGUN)
    assert home.published == [topics.device_state(FLEET, "e", "a"), discovery("a")]
    assert read_discovery(home.config("a")).device.name == "a"
    assert home.state("a") == {
        "online": True, "training": False, "visits": 0, "loss": None, "reason": "", "releases": {},
    }  # fmt: skip


def test_nothing_is_announced_before_a_link_is_up() -> None:
    home = Home()
    home.born("a")
    home.wake(100.0)
    assert not home.kept
    assert home.home.wake_at() is None


def test_death_shows_device_offline_unless_outdated() -> None:
    home = Home()
    now = home.begun("a")
    home.handle(Present(device("a"), Epoch(0, bytes(8)), Death()), now)
    home.wake(now + STATE_INTERVAL)
    assert home.state("a")["online"]
    home.handle(Present(device("a"), EPOCH, Death()), now + 2 * STATE_INTERVAL)
    assert not home.state("a")["online"]


def test_device_offline_before_start_is_shown() -> None:
    home = Home()
    home.handle(LinkUp())
    home.handle(Present(device("a"), EPOCH, Death()))
    home.wake(BEGUN)
    assert not home.state("a")["online"]
    assert read_discovery(home.config("a")).device.name == "a"


def test_visit_progress_is_shown() -> None:
    home = Home()
    now = home.begun("a")
    home.take(tour(hops=("a",)), now)
    home.receive(device("a"), Progress(visit_id(), "fetching", 0, 4), now + STATE_INTERVAL)
    assert not home.state("a")["training"]
    home.receive(device("a"), Progress(visit_id(), "training", 1, 4), now + 2 * STATE_INTERVAL)
    assert home.state("a")["training"]
    home.visited("a", visit_id(), now + 3 * STATE_INTERVAL)
    assert not home.state("a")["training"]
    home.passes("a", now + 4 * STATE_INTERVAL)
    assert home.state("a")["visits"] == 1
    assert not home.state("a")["training"]


def test_decline_reason_is_shown_until_a_visit_is_kept() -> None:
    home = Home()
    now = home.begun("a")
    home.take(tour(hops=("a", "a")), now)
    hot = "81 degrees \x1b[31m\u202e" + "x" * 900
    home.receive(device("a"), Declined(visit_id(), "hot", hot), now + STATE_INTERVAL)
    reason = home.state("a")["reason"]
    assert reason.startswith("declined: hot: 81 degrees x")
    assert len(reason) <= 255
    home.visited("a", visit_id(hop=1, attempt=(1, 2)), now + 2 * STATE_INTERVAL)
    home.passes("a", now + 3 * STATE_INTERVAL)
    assert home.state("a")["reason"] == ""


def test_cancelled_tour_ends_the_training_state() -> None:
    home = Home()
    now = home.begun("a")
    home.take(tour(hops=("a",)), now)
    home.receive(device("a"), Progress(visit_id(), "training", 1, 4), now + STATE_INTERVAL)
    assert home.state("a")["training"]
    home.receive(CLOUD, TourCancel(tour_id()), now + 3 * STATE_INTERVAL)
    assert not home.state("a")["training"]


def test_state_is_published_on_change_at_most_once_a_second() -> None:
    home = Home()
    now = home.begun("a")
    topic = topics.device_state(FLEET, "e", "a")
    before = home.published.count(topic)
    for step in range(20):
        presence = Death() if step % 2 else Birth(OFFER)
        home.handle(Present(device("a"), EPOCH, presence), now + step * 0.01)
    assert home.published.count(topic) == before
    home.wake(now + STATE_INTERVAL)
    assert home.published.count(topic) == before + 1
    home.wake(now + 10 * STATE_INTERVAL)
    assert home.published.count(topic) == before + 1


def test_home_assistant_restart_republishes_with_rate_limit() -> None:
    home = Home()
    now = home.begun("a", "b")
    home.published.clear()
    for payload in (b"offline", b"", b"x" * 1_000_000):
        home.handle(ForeignMessage("homeassistant/status", payload), now)
    assert home.home.wake_at() is None or home.home.wake_at() == BEGUN + ECHO_SECONDS
    for _ in range(100):
        home.handle(ForeignMessage("homeassistant/status", b"online"), now)
    assert discovery("a") not in home.published
    home.wake(now + mirror.RESTART_DELAY[1])
    assert home.published.count(discovery("a")) == home.published.count(discovery("b")) == 1
    home.handle(ForeignMessage("homeassistant/status", b"online"), now + mirror.RESTART_DELAY[1])
    home.wake(now + mirror.RESTART_DELAY[1] + 0.1)
    assert home.published.count(discovery("a")) == 1
    home.wake(now + 3 * ANNOUNCE_INTERVAL)
    assert home.published.count(discovery("a")) == 2


def test_only_a_new_version_is_announced_again() -> None:
    home = Home()
    now = home.begun("a")
    home.born("a", now, offer=msgspec.structs.replace(OFFER, data="digits, looked at"))
    home.wake(now + 10.0)
    assert home.published.count(discovery("a")) == 1
    home.born("a", now + 10.0, offer=msgspec.structs.replace(OFFER, version="0.9.1"))
    home.wake(now + 20.0)
    assert home.published.count(discovery("a")) == 2
    assert read_discovery(home.config("a")).device.sw_version == "0.9.1"


def test_all_topics_are_republished_on_reconnect() -> None:
    home = Home()
    now = home.begun("a")
    home.kept.clear()
    home.handle(LinkUp(), now)
    home.wake(now + BEGUN)
    assert set(home.kept) == {discovery("a"), topics.device_state(FLEET, "e", "a")}


def test_announcements_are_sent_in_batches() -> None:
    home = Home()
    home.handle(LinkUp())
    names = [f"d{number}" for number in range(BATCH + 3)]
    for name in names:
        home.born(name)
    home.wake(BEGUN)
    assert len([topic for topic in home.published if topic.endswith("/config")]) == BATCH
    home.wake(BEGUN + mirror.BATCH_SECONDS)
    assert {discovery(name) for name in names} <= set(home.published)


def test_removed_device_is_cleared() -> None:
    home = Home()
    now = home.begun("a", "b")
    home.handle(Present(device("a"), EPOCH, Death()), now)
    home.handle(NodeRemoved(device("a")), now)
    assert home.config("a") == b""
    assert home.kept[topics.device_state(FLEET, "e", "a")] == b""
    assert home.config("b") != b""
    home.wake(now + 100.0)
    home.handle(LinkUp(), now + 100.0)
    home.wake(now + 200.0)
    assert home.config("a") == b""
    published = len(home.published)
    home.handle(NodeRemoved(device("stranger")), now + 200.0)
    assert len(home.published) == published


def test_ordered_and_served_release_is_shown() -> None:
    home = Home()
    now = home.begun("a")
    home.receive(CLOUD, Ship(order("digits", 2), None, None, ("a", "elsewhere")), now)
    home.wake(now + STATE_INTERVAL)
    assert home.state("a")["releases"] == {
        "digits": {"installed_version": "none", "latest_version": "2", "in_progress": False}
    }
    assert "release_digits" in read_discovery(home.config("a")).components
    home.receive(device("a"), ReleaseReport("digits", 1, 0, "fetching"), now + 2 * STATE_INTERVAL)
    assert home.state("a")["releases"]["digits"]["in_progress"]
    home.receive(device("a"), ReleaseReport("digits", 1, 2, "serving"), now + 4 * STATE_INTERVAL)
    assert home.state("a")["releases"]["digits"] == {
        "installed_version": "2", "latest_version": "2", "in_progress": False,
    }  # fmt: skip
    home.receive(CLOUD, Ship(SignedOrder(b"?", bytes(64)), None, None, ("a",)), now + 5 * STATE_INTERVAL)


def test_shown_release_lines_are_bounded() -> None:
    home = Home()
    now = home.begun("a")
    for number in range(50):
        home.receive(device("a"), ReleaseReport(f"line-{number}", 1, 1, "serving"), now)
    home.wake(now + STATE_INTERVAL)
    assert len(home.state("a")["releases"]) == 8


def test_restarted_edge_server_resumes_from_retained_state() -> None:
    home = Home()
    home.handle(LinkUp())
    left = ShownDevice(False, True, 41, 0.5, "lost: x", {"digits": ShownRelease("3", "4")}).encoded()
    topic = topics.device_state(FLEET, "e", "a")
    home.handle(ForeignMessage(topics.device_state(FLEET, "e", "b"), left))  # before its presence
    home.born("a")
    home.born("b")
    home.handle(ForeignMessage(topic, left))
    for wrong in (b"", b"[]", b"x" * 100_000):
        home.handle(ForeignMessage(topic, wrong))
    home.wake(BEGUN)
    for name in ("a", "b"):
        assert home.state(name) == {**json.loads(left), "online": True, "training": False}
        assert "release_digits" in read_discovery(home.config(name)).components
    home.handle(ForeignMessage(topic, ShownDevice(visits=7).encoded()), BEGUN)  # now it is only an echo
    home.wake(BEGUN + STATE_INTERVAL)
    assert home.state("a")["visits"] == 41


def test_blocked_broker_topic_is_logged_once() -> None:
    home = Home()
    now = home.begun("a")
    home.wake(now + ECHO_SECONDS)
    home.wake(now + 2 * ECHO_SECONDS)
    assert sum("do not come back" in line for line in home.logged) == 1
    other = Home()
    now = other.begun("a")
    topic = topics.device_state(FLEET, "e", "a")
    other.handle(ForeignMessage(topic, other.kept[topic]), now)
    other.wake(now + ECHO_SECONDS)
    assert not any("do not come back" in line for line in other.logged)


def test_foreign_topics_are_ignored() -> None:
    home = Home()
    now = home.begun("a")
    for topic in ("homeassistant/x", "sojourn/home-assistant/f/e/A B/state", "sojourn/home-assistant/f/x/a/state", ""):
        home.handle(ForeignMessage(topic, b"online"), now)
    assert home.handle(Received(device("a"), EPOCH, ReleaseReport("digits", 1, 1, "serving")), now)
