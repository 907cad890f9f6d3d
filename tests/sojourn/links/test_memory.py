"""The broker in memory: MQTT's guarantees, and its faults."""

from __future__ import annotations

import pytest

from fleet_sim.world.world import World
from sojourn.links.link import Will
from sojourn.links.memory import Faults, MemoryLink
from sojourn.profile import LinkProfile

SLOW = LinkProfile(up=100.0, down=400.0, latency=0.25)


class Inbox:
    def __init__(self) -> None:
        self.received: list[tuple[str, bytes]] = []
        self.ups = 0

    def link_up(self, link) -> None:
        self.ups += 1

    def link_down(self, link, reason) -> None:
        raise AssertionError("links in memory do not go down")

    def arrived(self, link, topic, payload) -> None:
        self.received.append((topic, payload))


@pytest.fixture
def world() -> World:
    return World()


def joined(broker, filters, will=None) -> tuple[MemoryLink, Inbox]:
    link, ears = MemoryLink(broker), Inbox()
    link.open(ears, filters, will)
    return link, ears


class TimedInbox(Inbox):
    """A listener that records the time of each message."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.times: list[float] = []
        self._world = world

    def arrived(self, link, topic, payload) -> None:
        super().arrived(link, topic, payload)
        self.times.append(self._world.now)


def lined(broker, filters, profile=None, will=None) -> tuple[MemoryLink, TimedInbox]:
    """Return a client on a separate line; `broker.later` belongs to its world."""
    link, watch = MemoryLink(broker, profile=profile), TimedInbox(broker.later.__self__)
    link.open(watch, filters, will)
    return link, watch


def everything(world: World) -> None:
    world.run(lambda: False)


def test_messages_reach_matching_subscribers(world) -> None:
    broker = world.broker()
    one, ears = joined(broker, ["a/+/c"])
    _, others = joined(broker, ["a/b", "x/#"])
    for topic in ("a/b/c", "a/c", "a/b/d", "a/b/c/d"):
        one.publish(topic, b"hi")
    everything(world)
    assert ears.received == [("a/b/c", b"hi")]
    assert others.received == []
    assert ears.ups == 1
    assert broker.payload == 8


def test_late_subscriber_gets_latest_retained_message(world) -> None:
    broker = world.broker()
    one, _ = joined(broker, [])
    one.publish("state", b"1", retain=True)
    one.publish("state", b"2", retain=True)
    everything(world)
    _, ears = joined(broker, ["state"])
    everything(world)
    assert ears.received == [("state", b"2")]


def test_will_is_published_only_after_a_cut(world) -> None:
    broker = world.broker()
    _, ears = joined(broker, ["+"])
    for end, received in (("close", []), ("cut", [("gone", b"me")])):
        link, _ = joined(broker, [], Will("gone", b"me"))
        getattr(link, end)()
        link.publish("more", b"not sent")
        everything(world)
        assert ears.received == received


def test_cut_link_receives_nothing(world) -> None:
    broker = world.broker()
    one, ears = joined(broker, ["t"])
    two, _ = joined(broker, [])
    two.publish("t", b"on its way")
    one.cut()
    everything(world)
    assert ears.received == []


def test_faults_lose_repeat_and_reorder_messages(world) -> None:
    broker = world.broker(Faults(loss=0.3, repeat=0.3, spread=1.0, seed=4))
    one, ears = joined(broker, ["t"])
    for number in range(1000):
        one.publish("t", number.to_bytes(2, "big"))
    everything(world)
    numbers = [int.from_bytes(payload, "big") for _, payload in ears.received]
    assert 600 < len(set(numbers)) < 800
    assert 850 < len(numbers) < 970
    assert numbers != sorted(numbers)


def test_retained_messages_are_neither_lost_nor_reordered(world) -> None:
    broker = world.broker(Faults(loss=0.9, repeat=0.5, spread=5.0, seed=4))
    one, ears = joined(broker, ["state"])
    for number in range(100):
        one.publish("state", bytes([number]), retain=True)
    everything(world)
    assert [payload for _, payload in ears.received] == [bytes([number]) for number in range(100)]


def test_same_seed_yields_the_same_faults() -> None:
    received = []
    for _ in range(2):
        world = World()
        one, ears = joined(world.broker(Faults(0.3, 0.3, 0.01, 1.0, 7)), ["t"])
        for number in range(50):
            one.publish("t", bytes([number]))
        everything(world)
        received.append(ears.received)
    assert received[0] == received[1]


def test_time_advances_only_with_events(world) -> None:
    seen: list[float] = []
    for delay in (3.0, 1.0, 2.0, 1.0):
        world.later(delay, lambda: seen.append(world.now))
    assert not world.run(lambda: False, limit=2.5)
    assert seen == [1.0, 1.0, 2.0]
    assert world.run(lambda: len(seen) == 4)
    assert world.now == 3.0


@pytest.fixture
def broker(world):
    """Return a broker without delay."""
    return world.broker(Faults(delay=0.0))


def test_delivery_time_is_size_plus_latency_on_each_side(broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, far = lined(broker, ["t"], LinkProfile(up=1.0, down=50.0, latency=0.5))
    _, near = lined(broker, ["t"])
    sender.publish("t", bytes(200))
    everything(near._world)
    # 200 bytes at 100 a second and 0.25 s to the broker; at 50 a second and 0.5 s to the other.
    assert near.times == [2.25]
    assert far.times == [2.25 + 4 + 0.5]
    assert broker.payload == 200


def test_broker_delay_adds_to_delivery_time(world) -> None:
    slow = world.broker(Faults(delay=1.0))
    sender, _ = lined(slow, [], SLOW)
    _, received = lined(slow, ["t"], SLOW)
    sender.publish("t", bytes(100))
    everything(world)
    assert received.times == [1 + 0.25 + 1 + 0.25 + 0.25]


def test_messages_queue_behind_earlier_ones(broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, received = lined(broker, ["t"])
    for size in (100, 50, 0, 200):
        sender.publish("t", bytes(size))
    everything(received._world)
    # The line is busy for 1, 0.5, 0 and 2 s; the latency is not added up.
    assert received.times == [1.25, 1.75, 1.75, 3.75]
    assert [len(payload) for _, payload in received.received] == [100, 50, 0, 200]


def test_idle_line_sends_immediately(world, broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, received = lined(broker, ["t"])
    sender.publish("t", bytes(100))
    world.later(0.5, lambda: sender.publish("t", bytes(100)))
    world.later(10.0, lambda: sender.publish("t", bytes(100)))
    everything(world)
    assert received.times == [1.25, 2.25, 11.25]


def test_directions_and_clients_do_not_block_each_other(world, broker) -> None:
    one, received = lined(broker, ["to-one"], SLOW)
    two, others = lined(broker, ["to-two"], SLOW)
    one.publish("to-two", bytes(400))
    two.publish("to-one", bytes(400))
    everything(world)
    assert received.times == others.times == [4 + 0.25 + 1 + 0.25]


def test_two_senders_share_the_line_of_the_receiver(world, broker) -> None:
    _, received = lined(broker, ["t"], LinkProfile(up=1.0, down=100.0, latency=0.0))
    for _ in range(2):
        sender, _ = lined(broker, [])
        sender.publish("t", bytes(100))
    everything(world)
    assert received.times == [1.0, 2.0]


def test_retained_message_is_delayed_by_the_line(world, broker) -> None:
    sender, _ = lined(broker, [])
    sender.publish("state", bytes(400), retain=True)
    everything(world)
    _, received = lined(broker, ["state"], SLOW)
    everything(world)
    assert received.times == [1.25]


def test_cut_loses_messages_in_transit_but_not_the_will(world, broker) -> None:
    sender, _ = lined(broker, [], SLOW, Will("will", b"gone"))
    _, received = lined(broker, ["t", "will"])
    for _ in range(3):
        sender.publish("t", bytes(100))
    world.later(1.5, sender.cut)  # the first is there, the second half sent
    everything(world)
    assert [topic for topic, _ in received.received] == ["t", "will"]
    assert received.times == [1.25, 1.5]


def test_messages_sent_before_close_are_delivered(world, broker) -> None:
    sender, _ = lined(broker, [], SLOW)
    _, received = lined(broker, ["t"])
    sender.publish("t", bytes(100))
    sender.close()
    sender.publish("t", bytes(100))
    everything(world)
    assert received.times == [1.25]


def test_cut_receiver_gets_no_further_messages_over_its_line(world, broker) -> None:
    sender, _ = lined(broker, [])
    receiver, received = lined(broker, ["t"], SLOW)
    for _ in range(3):
        sender.publish("t", bytes(400))
    world.later(1.5, receiver.cut)
    everything(world)
    assert received.times == [1.25]


def test_lines_apply_the_same_faults() -> None:
    received = []
    for profile in (None, LinkProfile(up=1e9, down=1e9, latency=0.0)):
        world = World()
        link, watch = lined(world.broker(Faults(0.3, 0.3, 0.01, 0.0, 7)), ["t"], profile)
        for number in range(50):
            link.publish("t", bytes([number]))
        everything(world)
        received.append(watch.received)
    assert received[0] == received[1]
    assert len(received[0]) != 50
