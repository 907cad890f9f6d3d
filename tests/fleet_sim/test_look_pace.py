"""The frequency of a simulation's updates, limited by their cost."""

from __future__ import annotations

import pytest

from fleet_sim.run import REFRESH, SHARE, SHARE_WITH_NEWS, LookPace


class SlowClock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pace = LookPace(lambda: self.now)

    def look(self, cost: float) -> None:
        with self.pace.look():
            self.now += cost


def test_cheap_refresh_is_followed_by_the_usual_pause() -> None:
    clock = SlowClock()
    clock.look(0.0001)
    assert clock.pace.next == pytest.approx(clock.now + REFRESH)
    assert not clock.pace.is_due(news=False)
    clock.now += REFRESH
    assert clock.pace.is_due(news=False)


def test_expensive_refresh_is_followed_by_a_long_pause() -> None:
    clock = SlowClock()
    clock.look(0.02)
    assert clock.pace.next == pytest.approx(clock.now + 0.02 / SHARE)


def test_all_refreshes_take_a_small_share_of_time() -> None:
    clock, spent = SlowClock(), 0.0
    while clock.now < 100.0:
        if clock.pace.is_due(news=True):
            clock.look(0.005)
            spent += 0.005
        clock.now += 0.01
    assert 0.9 * SHARE_WITH_NEWS < spent / clock.now < 0.01


def test_round_is_shown_at_once_after_few_refreshes() -> None:
    clock = SlowClock()
    clock.look(0.004)
    clock.now = 0.5
    assert not clock.pace.is_due(news=True)  # 0.8 % so far
    clock.now = 0.6
    assert clock.pace.is_due(news=True)
    assert not clock.pace.is_due(news=False)
