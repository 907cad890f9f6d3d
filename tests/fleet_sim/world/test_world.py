"""The virtual clock: what happens when, and in which order."""

from __future__ import annotations

import heapq
from functools import partial

import pytest

from fleet_sim.world.world import OFTEN, World
from sojourn.randomness import generator


@pytest.mark.parametrize("seed", range(5))
def test_things_happen_in_time_and_at_the_same_time_as_they_were_asked_for(seed: int) -> None:
    draw = generator(seed, "happenings")
    world = World()
    happened: list[tuple[float, int, int]] = []
    expected: list[tuple[float, int, int]] = []
    count = 0

    def ask(depth: int) -> None:
        nonlocal count
        delay = float(draw.choice([*OFTEN, 2 * OFTEN[1], 0.0005]))
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


@pytest.mark.parametrize("delay", [*OFTEN, 0.5])
def test_nothing_happens_after_the_limit(delay: float) -> None:
    world, happened = World(), []
    world.now = 1.0
    world.later(delay, lambda: happened.append(world.now))
    assert not world.run(lambda: False, limit=delay + 0.9999)
    assert happened == []
    assert world.now == 1.0
    assert not world.run(lambda: False, limit=delay + 1.0)
    assert happened == [1.0 + delay]


def test_it_stops_as_soon_as_what_was_waited_for_holds() -> None:
    world, happened = World(), []
    for delay in (0.0, 0.0, 0.5):
        world.later(delay, lambda: happened.append(world.now))
    assert world.run(lambda: len(happened) == 1)
    assert happened == [0.0]
