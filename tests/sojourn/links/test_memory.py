"""The broker in memory: what MQTT promises, and the faults it can have."""

from __future__ import annotations

import pytest

from fleet_sim.world.world import World
from sojourn.links.link import Will
from sojourn.links.memory import Faults, MemoryLink
from sojourn.profile import LinkProfile

SLOW = LinkProfile(up=100.0, down=400.0, latency=0.25)


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


class Watch(Ears):
    """Hears, and looks at the clock."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.times: list[float] = []
        self._world = world

    def arrived(self, link, topic, payload) -> None:
        super().arrived(link, topic, payload)
        self.times.append(self._world.now)


def lined(broker, filters, profile=None, will=None) -> tuple[MemoryLink, Watch]:
    """A client on a line of its own; `broker.later` belongs to its world."""
    link, watch = MemoryLink(broker, profile=profile), Watch(broker.later.__self__)
    link.open(watch, filters, will)
    return link, watch


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


@pytest.fixture
def broker(world):
    """A broker that takes no time of its own."""
    return world.broker(Faults(delay=0.0))


def test_a_message_takes_its_bytes_and_the_latency_on_each_side(broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, far = lined(broker, ["t"], LinkProfile(up=1.0, down=50.0, latency=0.5))
    _, near = lined(broker, ["t"])
    sender.publish("t", bytes(200))
    everything(near._world)
    # 200 bytes at 100 a second and 0.25 s to the broker; at 50 a second and 0.5 s to the other.
    assert near.times == [2.25]
    assert far.times == [2.25 + 4 + 0.5]
    assert broker.payload == 200


def test_the_brokers_own_delay_comes_in_between(world) -> None:
    slow = world.broker(Faults(delay=1.0))
    sender, _ = lined(slow, [], SLOW)
    _, heard = lined(slow, ["t"], SLOW)
    sender.publish("t", bytes(100))
    everything(world)
    assert heard.times == [1 + 0.25 + 1 + 0.25 + 0.25]


def test_messages_wait_for_those_before_them(broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, heard = lined(broker, ["t"])
    for size in (100, 50, 0, 200):
        sender.publish("t", bytes(size))
    everything(heard._world)
    # The line is busy for 1, 0.5, 0 and 2 s; the latency is not added up.
    assert heard.times == [1.25, 1.75, 1.75, 3.75]
    assert [len(payload) for _, payload in heard.heard] == [100, 50, 0, 200]


def test_an_idle_line_starts_anew(world, broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, heard = lined(broker, ["t"])
    sender.publish("t", bytes(100))
    world.later(0.5, lambda: sender.publish("t", bytes(100)))
    world.later(10.0, lambda: sender.publish("t", bytes(100)))
    everything(world)
    assert heard.times == [1.25, 2.25, 11.25]


def test_directions_and_clients_do_not_wait_for_one_another(world, broker) -> None:
    one, heard = lined(broker, ["to-one"], SLOW)
    two, others = lined(broker, ["to-two"], SLOW)
    one.publish("to-two", bytes(400))
    two.publish("to-one", bytes(400))
    everything(world)
    assert heard.times == others.times == [4 + 0.25 + 1 + 0.25]


def test_two_senders_share_the_receivers_line(world, broker) -> None:
    _, heard = lined(broker, ["t"], LinkProfile(up=1.0, down=100.0, latency=0.0))
    for _ in range(2):
        sender, _ = lined(broker, [])
        sender.publish("t", bytes(100))
    everything(world)
    assert heard.times == [1.0, 2.0]


def test_what_is_retained_comes_over_the_line_too(world, broker) -> None:
    sender, _ = lined(broker, [])
    sender.publish("state", bytes(400), retain=True)
    everything(world)
    _, heard = lined(broker, ["state"], SLOW)
    everything(world)
    assert heard.times == [1.25]


def test_what_is_on_a_line_that_is_cut_is_lost_and_the_will_is_not(world, broker) -> None:
    sender, _ = lined(broker, [], SLOW, Will("will", b"gone"))
    _, heard = lined(broker, ["t", "will"])
    for _ in range(3):
        sender.publish("t", bytes(100))
    world.later(1.5, sender.cut)  # the first is there, the second half sent
    everything(world)
    assert [topic for topic, _ in heard.heard] == ["t", "will"]
    assert heard.times == [1.25, 1.5]


def test_what_was_sent_before_closing_in_good_order_arrives(world, broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, heard = lined(broker, ["t"])
    sender.publish("t", bytes(100))
    sender.close()
    sender.publish("t", bytes(100))
    everything(world)
    assert heard.times == [1.25]


def test_a_receiver_that_was_cut_hears_nothing_more_over_its_line(world, broker) -> None:
    sender, _ = lined(broker, [])
    receiver, heard = lined(broker, ["t"], SLOW)
    for _ in range(3):
        sender.publish("t", bytes(400))
    world.later(1.5, receiver.cut)
    everything(world)
    assert heard.times == [1.25]


def test_faults_happen_on_lines_as_without_them() -> None:
    heard = []
    for profile in (None, LinkProfile(up=1e9, down=1e9, latency=0.0)):
        world = World()
        link, watch = lined(world.broker(Faults(0.3, 0.3, 0.01, 0.0, 7)), ["t"], profile)
        for number in range(50):
            link.publish("t", bytes([number]))
        everything(world)
        heard.append(watch.heard)
    assert heard[0] == heard[1]
    assert len(heard[0]) != 50
