"""What is published for Home Assistant, when, and how often."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from hierarchy.edge.home_assistant import mirror
from hierarchy.edge.home_assistant.mirror import AGAIN, AT_ONCE, ECHO, PAUSE, SETTLING, HomeMirror
from hierarchy.edge.home_assistant.payloads import ShownDevice, ShownRelease
from hierarchy.edge.server import EdgeServer
from sojourn.node.machine import Linked, NodeRemoved, Overheard, Present, Publish, Received, Say, Woke
from sojourn.protocol import home_topics
from sojourn.protocol.messages import Birth, Death, Declined, Progress, TourCancel
from sojourn.protocol.release import Order, SignedOrder
from sojourn.protocol.release_messages import ReleaseReport, Ship
from sojourn.protocol.wire import Epoch, Offer
from tests.hierarchy.edge.home_assistant.documented import read_discovery
from tests.hierarchy.edge.site_bench import CLOUD, EPOCH, Bench, device, tour, tour_id, visit_id

FLEET = "f"
OFFER = Offer("0.9.0", "Raspberry Pi 4", "onnxruntime 1.20", 4, 1 << 30, ("plain",), "digits")
BEGUN = SETTLING + 0.001


class Home(Bench):
    """An edge server that shows its devices, and what is retained of that at the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.home = HomeMirror(FLEET, "e")
        self.edge = EdgeServer("e", "c", self.home)
        self.kept: dict[str, bytes] = {}
        self.published: list[str] = []
        self.said: list[str] = []

    def tell(self, event, now=0.0):
        effects = super().tell(event, now)
        for effect in effects:
            if isinstance(effect, Publish):
                assert effect.role == "device"
                self.kept[effect.topic] = effect.payload
                self.published.append(effect.topic)
            elif isinstance(effect, Say):
                self.said.append(effect.text)
        return effects

    def born(self, name: str, now=0.0, epoch: Epoch = EPOCH, offer=OFFER) -> None:
        self.tell(Present(device(name), epoch, Birth(offer)), now)

    def begun(self, *names: str) -> float:
        """The link is up, these devices are here, and all were announced."""
        self.tell(Linked())
        for name in names:
            self.born(name)
        self.wake(BEGUN)
        return BEGUN

    def wake(self, now: float) -> None:
        self.tell(Woke(), now)

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kept[home_topics.device_state(FLEET, "e", name)])
        return found

    def config(self, name: str) -> bytes:
        return self.kept[discovery(name)]


def discovery(name: str) -> str:
    return home_topics.discovery("homeassistant", home_topics.object_id(FLEET, "e", name))


def order(line: str, version: int) -> SignedOrder:
    return SignedOrder(msgspec.msgpack.encode(Order(FLEET, line, 1, version, None)), bytes(64))


def test_without_the_setting_nothing_is_published() -> None:
    bench = Bench()
    effects = [bench.tell(Linked()), bench.tell(Present(device("a"), EPOCH, Birth(OFFER))), bench.tell(Woke(), 99.0)]
    effects.append(bench.tell(Overheard("homeassistant/status", b"online"), 99.0))
    assert not [each for those in effects for each in those if isinstance(each, Publish)]


def test_a_device_is_announced_once_what_the_broker_kept_has_come() -> None:
    home = Home()
    home.tell(Linked())
    home.born("a")
    home.wake(SETTLING / 2)
    assert not home.kept
    home.wake(BEGUN)
    assert home.published == [home_topics.device_state(FLEET, "e", "a"), discovery("a")]
    assert read_discovery(home.config("a")).device.name == "a"
    assert home.state("a") == {
        "online": True, "training": False, "visits": 0, "loss": None, "reason": "", "releases": {},
    }  # fmt: skip


def test_nothing_is_announced_before_there_is_a_link() -> None:
    home = Home()
    home.born("a")
    home.wake(100.0)
    assert not home.kept
    assert home.home.wake_at() is None


def test_who_goes_is_shown_as_gone_and_an_old_death_is_not() -> None:
    home = Home()
    now = home.begun("a")
    home.tell(Present(device("a"), Epoch(0, bytes(8)), Death()), now)
    home.wake(now + PAUSE)
    assert home.state("a")["online"]
    home.tell(Present(device("a"), EPOCH, Death()), now + 2 * PAUSE)
    assert not home.state("a")["online"]


def test_who_was_gone_before_we_came_is_shown() -> None:
    home = Home()
    home.tell(Linked())
    home.tell(Present(device("a"), EPOCH, Death()))
    home.wake(BEGUN)
    assert not home.state("a")["online"]
    assert read_discovery(home.config("a")).device.name == "a"


def test_a_visit_is_followed() -> None:
    home = Home()
    now = home.begun("a")
    home.take(tour(hops=("a",)), now)
    home.hear(device("a"), Progress(visit_id(), "fetching", 0, 4), now + PAUSE)
    assert not home.state("a")["training"]
    home.hear(device("a"), Progress(visit_id(), "training", 1, 4), now + 2 * PAUSE)
    assert home.state("a")["training"]
    home.visited("a", visit_id(), now + 3 * PAUSE)
    assert not home.state("a")["training"]
    home.passes("a", now + 4 * PAUSE)
    assert home.state("a")["visits"] == 1
    assert not home.state("a")["training"]


def test_a_decline_gives_its_reason_until_a_visit_is_kept() -> None:
    home = Home()
    now = home.begun("a")
    home.take(tour(hops=("a", "a")), now)
    hot = "81 degrees \x1b[31m\u202e" + "x" * 900
    home.hear(device("a"), Declined(visit_id(), "hot", hot), now + PAUSE)
    reason = home.state("a")["reason"]
    assert reason.startswith("declined: hot: 81 degrees x")
    assert len(reason) <= 255
    home.visited("a", visit_id(hop=1, attempt=(1, 2)), now + 2 * PAUSE)
    home.passes("a", now + 3 * PAUSE)
    assert home.state("a")["reason"] == ""


def test_who_trained_on_a_tour_that_was_dropped_trains_no_more() -> None:
    home = Home()
    now = home.begun("a")
    home.take(tour(hops=("a",)), now)
    home.hear(device("a"), Progress(visit_id(), "training", 1, 4), now + PAUSE)
    assert home.state("a")["training"]
    home.hear(CLOUD, TourCancel(tour_id()), now + 3 * PAUSE)
    assert not home.state("a")["training"]


def test_states_are_published_once_a_second_at_most_and_only_when_they_change() -> None:
    home = Home()
    now = home.begun("a")
    topic = home_topics.device_state(FLEET, "e", "a")
    before = home.published.count(topic)
    for step in range(20):
        presence = Death() if step % 2 else Birth(OFFER)
        home.tell(Present(device("a"), EPOCH, presence), now + step * 0.01)
    assert home.published.count(topic) == before
    home.wake(now + PAUSE)
    assert home.published.count(topic) == before + 1
    home.wake(now + 10 * PAUSE)
    assert home.published.count(topic) == before + 1


def test_home_assistant_is_back_and_hears_all_again_but_not_again_and_again() -> None:
    home = Home()
    now = home.begun("a", "b")
    home.published.clear()
    for payload in (b"offline", b"", b"x" * 1_000_000):
        home.tell(Overheard("homeassistant/status", payload), now)
    assert home.home.wake_at() is None or home.home.wake_at() == BEGUN + ECHO
    for _ in range(100):
        home.tell(Overheard("homeassistant/status", b"online"), now)
    assert discovery("a") not in home.published
    home.wake(now + mirror.SPREAD[1])
    assert home.published.count(discovery("a")) == home.published.count(discovery("b")) == 1
    home.tell(Overheard("homeassistant/status", b"online"), now + mirror.SPREAD[1])
    home.wake(now + mirror.SPREAD[1] + 0.1)
    assert home.published.count(discovery("a")) == 1
    home.wake(now + 3 * AGAIN)
    assert home.published.count(discovery("a")) == 2


def test_a_device_that_says_more_of_its_data_is_not_announced_again_but_one_of_another_version_is() -> None:
    home = Home()
    now = home.begun("a")
    home.born("a", now, offer=msgspec.structs.replace(OFFER, data="digits, looked at"))
    home.wake(now + 10.0)
    assert home.published.count(discovery("a")) == 1
    home.born("a", now + 10.0, offer=msgspec.structs.replace(OFFER, version="0.9.1"))
    home.wake(now + 20.0)
    assert home.published.count(discovery("a")) == 2
    assert read_discovery(home.config("a")).device.sw_version == "0.9.1"


def test_what_the_broker_forgot_is_said_again_on_connect() -> None:
    home = Home()
    now = home.begun("a")
    home.kept.clear()
    home.tell(Linked(), now)
    home.wake(now + BEGUN)
    assert set(home.kept) == {discovery("a"), home_topics.device_state(FLEET, "e", "a")}


def test_many_devices_are_announced_a_few_at_a_time() -> None:
    home = Home()
    home.tell(Linked())
    names = [f"d{number}" for number in range(AT_ONCE + 3)]
    for name in names:
        home.born(name)
    home.wake(BEGUN)
    assert len([topic for topic in home.published if topic.endswith("/config")]) == AT_ONCE
    home.wake(BEGUN + mirror.STEP)
    assert {discovery(name) for name in names} <= set(home.published)


def test_a_removed_device_leaves_nothing() -> None:
    home = Home()
    now = home.begun("a", "b")
    home.tell(Present(device("a"), EPOCH, Death()), now)
    home.tell(NodeRemoved(device("a")), now)
    assert home.config("a") == b""
    assert home.kept[home_topics.device_state(FLEET, "e", "a")] == b""
    assert home.config("b") != b""
    home.wake(now + 100.0)
    home.tell(Linked(), now + 100.0)
    home.wake(now + 200.0)
    assert home.config("a") == b""
    published = len(home.published)
    home.tell(NodeRemoved(device("stranger")), now + 200.0)
    assert len(home.published) == published


def test_a_release_that_is_ordered_and_served_is_shown() -> None:
    home = Home()
    now = home.begun("a")
    home.hear(CLOUD, Ship(order("digits", 2), None, None, ("a", "elsewhere")), now)
    home.wake(now + PAUSE)
    assert home.state("a")["releases"] == {
        "digits": {"installed_version": "none", "latest_version": "2", "in_progress": False}
    }
    assert "release_digits" in read_discovery(home.config("a")).components
    home.hear(device("a"), ReleaseReport("digits", 1, 0, "fetching"), now + 2 * PAUSE)
    assert home.state("a")["releases"]["digits"]["in_progress"]
    home.hear(device("a"), ReleaseReport("digits", 1, 2, "serving"), now + 4 * PAUSE)
    assert home.state("a")["releases"]["digits"] == {
        "installed_version": "2", "latest_version": "2", "in_progress": False,
    }  # fmt: skip
    home.hear(CLOUD, Ship(SignedOrder(b"?", bytes(64)), None, None, ("a",)), now + 5 * PAUSE)


def test_a_device_cannot_have_more_lines_than_are_shown() -> None:
    home = Home()
    now = home.begun("a")
    for number in range(50):
        home.hear(device("a"), ReleaseReport(f"line-{number}", 1, 1, "serving"), now)
    home.wake(now + PAUSE)
    assert len(home.state("a")["releases"]) == 8


def test_a_restarted_edge_server_goes_on_from_what_it_left() -> None:
    home = Home()
    home.tell(Linked())
    left = ShownDevice(False, True, 41, 0.5, "lost: x", {"digits": ShownRelease("3", "4")}).encoded()
    topic = home_topics.device_state(FLEET, "e", "a")
    home.tell(Overheard(home_topics.device_state(FLEET, "e", "b"), left))  # before its presence
    home.born("a")
    home.born("b")
    home.tell(Overheard(topic, left))
    for wrong in (b"", b"[]", b"x" * 100_000):
        home.tell(Overheard(topic, wrong))
    home.wake(BEGUN)
    for name in ("a", "b"):
        assert home.state(name) == {**json.loads(left), "online": True, "training": False}
        assert "release_digits" in read_discovery(home.config(name)).components
    home.tell(Overheard(topic, ShownDevice(visits=7).encoded()), BEGUN)  # now it is only an echo
    home.wake(BEGUN + PAUSE)
    assert home.state("a")["visits"] == 41


def test_a_broker_that_does_not_let_it_pass_is_named_once() -> None:
    home = Home()
    now = home.begun("a")
    home.wake(now + ECHO)
    home.wake(now + 2 * ECHO)
    assert sum("does not come back" in line for line in home.said) == 1
    other = Home()
    now = other.begun("a")
    topic = home_topics.device_state(FLEET, "e", "a")
    other.tell(Overheard(topic, other.kept[topic]), now)
    other.wake(now + ECHO)
    assert not any("does not come back" in line for line in other.said)


def test_topics_of_others_are_left_alone() -> None:
    home = Home()
    now = home.begun("a")
    for topic in ("homeassistant/x", "sojourn/home-assistant/f/e/A B/state", "sojourn/home-assistant/f/x/a/state", ""):
        home.tell(Overheard(topic, b"online"), now)
    assert home.tell(Received(device("a"), EPOCH, ReleaseReport("digits", 1, 1, "serving")), now)
