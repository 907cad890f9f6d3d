"""Timers: postponed ones fire early, dropped ones never."""

from __future__ import annotations

import random

from sojourn.node.pending import TimerHeap


def test_timers_fire_once_in_order_of_time() -> None:
    alarm: TimerHeap[str] = TimerHeap()
    assert alarm.wake_at() is None
    alarm.set("late", 9.0)
    alarm.set("soon", 3.0)
    alarm.set("also", 3.0)
    assert alarm.wake_at() == 3
    assert alarm.due(2.9) == []
    assert alarm.due(3.0) == ["soon", "also"]
    assert alarm.due(20.0) == ["late"]
    assert alarm.wake_at() is None


def test_earlier_time_replaces_later_and_not_vice_versa() -> None:
    alarm: TimerHeap[str] = TimerHeap()
    alarm.set("a", 5.0)
    alarm.set("a", 2.0)
    alarm.set("a", 8.0)
    assert alarm.due(2.0) == ["a"]
    assert alarm.due(7.0) == []
    alarm.set("a", 8.0)
    assert alarm.due(8.0) == ["a"]


def test_forgotten_timer_does_not_fire() -> None:
    alarm: TimerHeap[str] = TimerHeap()
    alarm.set("a", 1.0)
    alarm.forget("a")
    alarm.forget("a")
    assert alarm.wake_at() is None
    assert alarm.due(9.0) == []
    alarm.set("a", 1.0)
    assert alarm.due(1.0) == ["a"]


def test_random_timers_never_fire_late() -> None:
    draw = random.Random(1)
    alarm: TimerHeap[int] = TimerHeap()
    wanted: dict[int, float] = {}
    for now in range(500):
        who, when = draw.randrange(20), now + draw.randrange(1, 30)
        if who in wanted:  # put off, as a lease is renewed
            wanted[who] = max(wanted[who], when)
        else:
            wanted[who] = when
            alarm.set(who, when)
        for due in alarm.due(now):
            if wanted[due] > now:
                alarm.set(due, wanted[due])
            else:
                assert wanted.pop(due) == now
    assert all(when >= 500 for when in wanted.values())
