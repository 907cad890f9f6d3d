"""How often a simulation is looked at: by what looks cost."""

from __future__ import annotations

import pytest

from fleet_sim.look_pace import REFRESH, SHARE, SHARE_WITH_NEWS, LookPace


class SlowClock:
    """A clock that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = LookPace(lambda: self.now)

    def look(self, cost: float) -> None:
        with self.pace.look():
            self.now += cost


def test_a_cheap_look_is_followed_by_the_usual_pause() -> None:
    clock = SlowClock()
    clock.look(0.0001)
    assert clock.pace.next == pytest.approx(clock.now + REFRESH)
    assert not clock.pace.is_due(news=False)
    clock.now += REFRESH
    assert clock.pace.is_due(news=False)


def test_a_dear_look_is_followed_by_a_long_pause() -> None:
    clock = SlowClock()
    clock.look(0.02)
    assert clock.pace.next == pytest.approx(clock.now + 0.02 / SHARE)


def test_all_looks_together_are_a_small_share() -> None:
    clock, spent = SlowClock(), 0.0
    while clock.now < 100.0:
        if clock.pace.is_due(news=True):
            clock.look(0.005)
            spent += 0.005
        clock.now += 0.01
    assert 0.9 * SHARE_WITH_NEWS < spent / clock.now < 0.01


def test_a_round_is_shown_at_once_where_looks_were_few() -> None:
    clock = SlowClock()
    clock.look(0.004)
    clock.now = 0.5
    assert not clock.pace.is_due(news=True)  # 0.8 % so far
    clock.now = 0.6
    assert clock.pace.is_due(news=True)
    assert not clock.pace.is_due(news=False)
