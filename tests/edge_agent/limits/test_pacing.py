"""Pauses between steps, on a clock that only advances during work and sleep."""

from __future__ import annotations

import pytest

from edge_agent.training.worker import SLICE, Pacing, due


class Hours:
    """A wall clock and a processor clock."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.slept: list[float] = []
        self.alive = 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.wall += seconds

    def work(self, wall: float, cpu: float) -> None:
        self.wall, self.cpu = self.wall + wall, self.cpu + cpu

    def sign(self) -> None:
        self.alive += 1

    def pacing(self, cores: float) -> Pacing:
        return Pacing(cores, clock=lambda: self.wall, used=lambda: self.cpu, sleep=self.sleep)


@pytest.mark.parametrize(
    ("cpu", "wall", "cores", "pace", "expected"),
    [(1, 1, 4, 1, 1), (4, 1, 4, 1, 1), (4, 1, 2, 1, 2), (1, 1, 4, 0.5, 2), (4, 1, 2, 0.5, 4), (0, 1, 0.1, 1, 1)],
)
def test_pause_length_follows_cpu_share_and_pace(cpu, wall, cores, pace, expected) -> None:
    assert due(cpu, wall, cores, pace) == expected


def test_work_within_its_share_never_pauses() -> None:
    hours = Hours()
    pacing = hours.pacing(2)
    for _ in range(100):
        hours.work(0.1, 0.2)
        pacing.rest(hours.sign)
    assert hours.slept == []


def test_average_cpu_use_matches_the_core_share() -> None:
    hours = Hours()
    pacing = hours.pacing(0.5)
    for _ in range(1000):  # the pauses of short steps are combined
        hours.work(0.001, 0.002)
        pacing.rest(hours.sign)
    assert hours.cpu / hours.wall == pytest.approx(0.5, rel=0.01)
    assert len(hours.slept) < 500


def test_long_pause_sends_progress_and_ends_after_cooling() -> None:
    hours = Hours()
    pacing = hours.pacing(1)
    pacing.pace = 0.1
    hours.work(1.0, 1.0)

    def cool() -> None:
        hours.sign()
        if hours.alive == 8:
            pacing.pace = 1.0

    pacing.rest(cool)
    assert hours.slept == [SLICE] * 8


def test_cpu_time_before_the_work_is_ignored() -> None:
    hours = Hours()
    pacing = hours.pacing(0.1)
    hours.work(5.0, 5.0)
    pacing.begin()
    pacing.rest(hours.sign)
    assert hours.slept == []


def test_cpu_time_during_a_pause_extends_the_next_pause() -> None:
    hours = Hours()
    pacing = hours.pacing(1.0)
    hours.work(1.0, 2.0)
    pacing.rest(lambda: hours.work(0, 0.5))  # four slices: two more seconds of a processor
    assert hours.wall == 2.0
    hours.work(1.0, 1.0)
    pacing.rest(hours.sign)
    assert hours.wall == 5.0
