"""The broker in memory: what MQTT promises, and the faults it can have."""

from __future__ import annotations

import pytest

from fleet_sim.world import World
from sojourn.link import Will
from sojourn.memory_link import Faults, MemoryLink


class Ears:
    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.ups = 0

    def link_up(self, link) -> None:
        self.ups += 1

    def link_down(self, link, reason) -> None:
        raise AssertionError("links in memory do not go down")

    def arrived(self, link, topic, payload) -> None:
        self.heard.append((topic, payload))


@pytest.fixture
def world() -> World:
    return World()


def joined(broker, filters, will=None) -> tuple[MemoryLink, Ears]:
    link, ears = MemoryLink(broker), Ears()
    link.open(ears, filters, will)
    return link, ears


def everything(world: World) -> None:
    world.run(lambda: False)


def test_messages_go_to_who_subscribed(world) -> None:
    broker = world.broker()
    one, ears = joined(broker, ["a/+/c"])
    _, others = joined(broker, ["a/b", "x/#"])
    for topic in ("a/b/c", "a/c", "a/b/d", "a/b/c/d"):
        one.publish(topic, b"hi")
    everything(world)
    assert ears.heard == [("a/b/c", b"hi")]
    assert others.heard == []
    assert ears.ups == 1
    assert broker.payload == 8


def test_what_is_retained_is_heard_later_and_replaced(world) -> None:
    broker = world.broker()
    one, _ = joined(broker, [])
    one.publish("state", b"1", retain=True)
    one.publish("state", b"2", retain=True)
    everything(world)
    _, ears = joined(broker, ["state"])
    everything(world)
    assert ears.heard == [("state", b"2")]


def test_a_will_is_published_only_when_the_link_is_cut(world) -> None:
    broker = world.broker()
    _, ears = joined(broker, ["+"])
    for end, heard in (("close", []), ("cut", [("gone", b"me")])):
        link, _ = joined(broker, [], Will("gone", b"me"))
        getattr(link, end)()
        link.publish("more", b"not sent")
        everything(world)
        assert ears.heard == heard


def test_a_link_that_was_cut_hears_nothing(world) -> None:
    broker = world.broker()
    one, ears = joined(broker, ["t"])
    two, _ = joined(broker, [])
    two.publish("t", b"on its way")
    one.cut()
    everything(world)
    assert ears.heard == []


def test_faults_lose_repeat_and_reorder(world) -> None:
    broker = world.broker(Faults(loss=0.3, repeat=0.3, spread=1.0, seed=4))
    one, ears = joined(broker, ["t"])
    for number in range(1000):
        one.publish("t", number.to_bytes(2, "big"))
    everything(world)
    numbers = [int.from_bytes(payload, "big") for _, payload in ears.heard]
    assert 600 < len(set(numbers)) < 800
    assert 850 < len(numbers) < 970
    assert numbers != sorted(numbers)


def test_what_is_retained_is_neither_lost_nor_reordered(world) -> None:
    broker = world.broker(Faults(loss=0.9, repeat=0.5, spread=5.0, seed=4))
    one, ears = joined(broker, ["state"])
    for number in range(100):
        one.publish("state", bytes([number]), retain=True)
    everything(world)
    assert [payload for _, payload in ears.heard] == [bytes([number]) for number in range(100)]


def test_the_same_seed_has_the_same_faults() -> None:
    heard = []
    for _ in range(2):
        world = World()
        one, ears = joined(world.broker(Faults(0.3, 0.3, 0.01, 1.0, 7)), ["t"])
        for number in range(50):
            one.publish("t", bytes([number]))
        everything(world)
        heard.append(ears.heard)
    assert heard[0] == heard[1]


def test_time_passes_only_when_something_happens(world) -> None:
    seen: list[float] = []
    for delay in (3.0, 1.0, 2.0, 1.0):
        world.later(delay, lambda: seen.append(world.now))
    assert not world.run(lambda: False, limit=2.5)
    assert seen == [1.0, 1.0, 2.0]
    assert world.run(lambda: len(seen) == 4)
    assert world.now == 3.0
