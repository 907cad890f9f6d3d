"""Requests that are resent until they are answered."""

from __future__ import annotations

from sojourn.node.machine import Send
from sojourn.node.pending import Outbox
from sojourn.protocol.messages import RosterAsk, RosterSeen
from sojourn.protocol.topics import Address
from tests.there import there

A, B = Address("edge", "a"), Address("edge", "b")


def test_request_is_sent_at_once_and_retried_with_backoff() -> None:
    box = Outbox()
    assert box.ask("key", A, RosterAsk(), 0.0) == [Send(A, RosterAsk())]
    times, now = [], 0.0
    for _ in range(7):
        now = there(box.wake_at())
        assert box.due(now - 0.001) == []
        assert box.due(now) == [Send(A, RosterAsk())]
        times.append(now)
    assert times == [1, 3, 7, 15, 30, 45, 60]


def test_answered_request_is_not_sent_again() -> None:
    box = Outbox()
    box.ask("key", A, RosterAsk(), 0.0)
    assert box.open("key")
    box.answered("key")
    box.answered("unknown")
    assert not box.open("key")
    assert box.wake_at() is None
    assert box.due(100.0) == []


def test_new_request_replaces_the_old_one() -> None:
    box = Outbox()
    box.ask("key", A, RosterSeen(1), 0.0)
    box.ask("key", A, RosterSeen(2), 0.5)
    assert box.due(10.0) == [Send(A, RosterSeen(2))]


def test_pending_requests_are_resent_when_a_node_returns() -> None:
    box = Outbox()
    box.ask("a", A, RosterAsk(), 0.0)
    box.ask("b", B, RosterAsk(), 0.0)
    for now in (1.0, 3.0, 7.0):
        box.due(now)
    assert box.resend_now(8.0, A) == [Send(A, RosterAsk())]
    assert box.wake_at() == 9.0
    assert box.resend_now(8.5) == [Send(A, RosterAsk()), Send(B, RosterAsk())]
    assert Outbox().resend_now(0.0) == []


def test_due_requests_are_sent_in_order_of_their_first_ask() -> None:
    box = Outbox()
    box.ask("late", A, RosterSeen(1), 0.5)
    box.ask("early", A, RosterSeen(2), 0.0)
    box.ask("late", A, RosterSeen(3), 0.6)  # takes the old one's place
    box.ask("middle", A, RosterSeen(4), 0.2)
    assert box.wake_at() == 1.0
    assert box.due(2.0) == [Send(A, RosterSeen(3)), Send(A, RosterSeen(2)), Send(A, RosterSeen(4))]
    assert box.wake_at() == 4.0


def test_outdated_timer_causes_no_wakeup() -> None:
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
