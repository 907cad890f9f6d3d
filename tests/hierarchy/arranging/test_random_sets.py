"""Random sets: sizes and chance."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hierarchy.arranging.random_sets import random_groups
from sojourn.parts import RandomArranger


@given(st.integers(1, 30), st.data())
def test_size_0_uses_all_devices_in_equal_parts(devices: int, data: st.DataObject) -> None:
    sets = data.draw(st.integers(1, devices))
    groups = random_groups(RandomArranger(sets=sets), devices, sets, data.draw(st.integers(0, 9)))
    assert sorted(device for group in groups for device in group) == list(range(devices))
    assert len(groups) == sets
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_a_size_is_kept_exactly_and_shrinks_evenly() -> None:
    assert list(map(len, random_groups(RandomArranger(size=3), 20, 4, 1))) == [3, 3, 3, 3]
    few = random_groups(RandomArranger(size=3), 10, 4, 1)
    assert list(map(len, few)) == [3, 3, 2, 2]
    assert sorted(device for group in few for device in group) == list(range(10))


def test_every_device_is_as_likely_in_every_set() -> None:
    seen = Counter(random_groups(RandomArranger(size=1), 4, 2, seed)[1][0] for seed in range(800))
    assert set(seen) == set(range(4))
    assert min(seen.values()) > 150


def test_the_number_the_schedule_asks_for_counts() -> None:
    assert len(random_groups(RandomArranger(sets=2), 9, 5, 1)) == 5


def test_another_seed_is_another_draw() -> None:
    one, same, other = (random_groups(RandomArranger(), 40, 4, seed) for seed in (1, 1, 2))
    assert one == same != other
