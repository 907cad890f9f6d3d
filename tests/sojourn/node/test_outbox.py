"""Requests that are resent until they are answered."""

from __future__ import annotations

from sojourn.node.machine import Send
from sojourn.node.outbox import Outbox
from sojourn.protocol.messages import RosterAsk, RosterSeen
from sojourn.protocol.topics import Address
from tests.there import there

A, B = Address("edge", "a"), Address("edge", "b")


def test_a_request_is_sent_at_once_and_again_with_growing_pauses() -> None:
    box = Outbox()
    assert box.ask("key", A, RosterAsk(), 0.0) == [Send(A, RosterAsk())]
    times, now = [], 0.0
    for _ in range(7):
        now = there(box.wake_at())
        assert box.due(now - 0.001) == []
        assert box.due(now) == [Send(A, RosterAsk())]
        times.append(now)
    assert times == [1, 3, 7, 15, 30, 45, 60]


def test_what_is_settled_is_not_sent_again() -> None:
    box = Outbox()
    box.ask("key", A, RosterAsk(), 0.0)
    assert box.open("key")
    box.answered("key")
    box.answered("unknown")
    assert not box.open("key")
    assert box.wake_at() is None
    assert box.due(100.0) == []


def test_a_new_request_takes_the_place_of_the_old() -> None:
    box = Outbox()
    box.ask("key", A, RosterSeen(1), 0.0)
    box.ask("key", A, RosterSeen(2), 0.5)
    assert box.due(10.0) == [Send(A, RosterSeen(2))]


def test_a_node_that_came_back_is_asked_at_once() -> None:
    box = Outbox()
    box.ask("a", A, RosterAsk(), 0.0)
    box.ask("b", B, RosterAsk(), 0.0)
    for now in (1.0, 3.0, 7.0):
        box.due(now)
    assert box.hasten(8.0, A) == [Send(A, RosterAsk())]
    assert box.wake_at() == 9.0
    assert box.hasten(8.5) == [Send(A, RosterAsk()), Send(B, RosterAsk())]
    assert Outbox().hasten(0.0) == []


def test_what_is_due_together_is_sent_in_the_order_in_which_it_was_asked() -> None:
    box = Outbox()
    box.ask("late", A, RosterSeen(1), 0.5)
    box.ask("early", A, RosterSeen(2), 0.0)
    box.ask("late", A, RosterSeen(3), 0.6)  # takes the old one's place
    box.ask("middle", A, RosterSeen(4), 0.2)
    assert box.wake_at() == 1.0
    assert box.due(2.0) == [Send(A, RosterSeen(3)), Send(A, RosterSeen(2)), Send(A, RosterSeen(4))]
    assert box.wake_at() == 4.0


def test_a_time_that_no_longer_holds_wakes_nobody() -> None:
    box = Outbox()
    box.ask("key", A, RosterSeen(1), 0.0)
    box.ask("key", A, RosterSeen(2), 5.0)
    assert box.wake_at() == 6.0
    box.answered("key")
    box.ask("key", B, RosterSeen(3), 5.0)
    assert box.due(6.0) == [Send(B, RosterSeen(3))]
    assert box.due(6.0) == []
    box.answered("key")
    assert box.wake_at() is None
