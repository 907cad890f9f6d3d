"""The virtual clock: times and order of events."""

from __future__ import annotations

import heapq
from functools import partial

import pytest

from fleet_sim.world.world import COMMON_DELAYS, World
from sojourn.randomness import generator


@pytest.mark.parametrize("seed", range(5))
def test_events_run_in_time_order_and_ties_in_request_order(seed: int) -> None:
    draw = generator(seed, "happenings")
    world = World()
    happened: list[tuple[float, int, int]] = []
    expected: list[tuple[float, int, int]] = []
    count = 0

    def ask(depth: int) -> None:
        nonlocal count
        delay = float(draw.choice([*COMMON_DELAYS, 2 * COMMON_DELAYS[1], 0.0005]))
        count += 1
        heapq.heappush(expected, (world.now + delay, count, depth))
        world.later(delay, partial(happen, (world.now + delay, count, depth)))

    def happen(mine: tuple[float, int, int]) -> None:
        assert mine == heapq.heappop(expected)
        assert world.now == mine[0]
        happened.append(mine)
        for _ in range(int(draw.integers(0, 3)) if mine[2] else 0):
            ask(mine[2] - 1)

    for _ in range(20):
        ask(6)
    assert not world.run(lambda: False)
    assert len(happened) == count > 40
    assert not expected


@pytest.mark.parametrize("delay", [*COMMON_DELAYS, 0.5])
def test_no_event_runs_after_the_limit(delay: float) -> None:
    world, happened = World(), []
    world.now = 1.0
    world.later(delay, lambda: happened.append(world.now))
    assert not world.run(lambda: False, limit=delay + 0.9999)
    assert happened == []
    assert world.now == 1.0
    assert not world.run(lambda: False, limit=delay + 1.0)
    assert happened == [1.0 + delay]


def test_run_stops_as_soon_as_its_condition_holds() -> None:
    world, happened = World(), []
    for delay in (0.0, 0.0, 0.5):
        world.later(delay, lambda: happened.append(world.now))
    assert world.run(lambda: len(happened) == 1)
    assert happened == [0.0]
