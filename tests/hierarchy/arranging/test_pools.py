"""Pools of sites, and how sets and devices are shared among them."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierarchy.arranging.pools import (
    DevicePool,
    assign_sites,
    device_pools,
    level,
    place_alone,
    place_groups,
    share_out,
)


@st.composite
def reaches(draw: st.DrawFn) -> NDArray[np.bool_]:
    sites = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=sites, max_size=sites), min_size=1, max_size=12))
    return np.array(rows, bool)


def a_pool(devices: int) -> DevicePool:
    return DevicePool((0,), tuple(range(devices)))


def test_sites_that_reach_the_same_devices_are_one_pool() -> None:
    assert device_pools(np.ones((3, 2), bool)) == [DevicePool((0, 1), (0, 1, 2))]
    apart = np.array([[True, False, True], [True, False, True], [False, True, False]])
    assert device_pools(apart) == [DevicePool((0, 2), (0, 1)), DevicePool((1,), (2,))]


def test_shared_device_goes_to_the_smallest_pool() -> None:
    # 0, 1 and 2 reach the first site only; 3 and 4 reach both, 5 only the second: 1 + 1 there, then 2 against 3.
    reach = np.array([[True, False]] * 3 + [[True, True]] * 2 + [[False, True]])
    assert assign_sites(reach).tolist() == [0, 0, 0, 1, 1, 1]
    assert device_pools(reach) == [DevicePool((0,), (0, 1, 2)), DevicePool((1,), (3, 4, 5))]


def test_devices_with_one_site_are_assigned_first() -> None:
    # In the order of numbers device 0 would go to site 0, where 1 and 2 must go.
    assert assign_sites(np.array([[True, True], [True, False], [True, False]])).tolist() == [1, 0, 0]


def test_unreachable_device_is_in_no_pool() -> None:
    assert assign_sites(np.array([[False, False], [True, False]])).tolist() == [-1, 0]
    assert device_pools(np.array([[False, False], [True, False]])) == [DevicePool((0,), (1,))]
    assert device_pools(np.zeros((2, 0), bool)) == []


@settings(deadline=None)
@given(reaches())
def test_pools_partition_devices_and_respect_reach(reach: NDArray[np.bool_]) -> None:
    pools = device_pools(reach)
    held = [device for pool in pools for device in pool.devices]
    assert sorted(held) == np.flatnonzero(reach.any(axis=1)).tolist()
    assert all(reach[device, site] for pool in pools for device in pool.devices for site in pool.sites)
    assert all(list(pool.devices) == sorted(pool.devices) and pool.devices for pool in pools)


def test_sets_are_shared_by_largest_remainder() -> None:
    # 10 sets over 47, 16, 15, 22 of 100: 4.7, 1.6, 1.5, 2.2, so 4, 1, 1, 2 and one more for .7 and .6.
    assert share_out([a_pool(n) for n in (47, 16, 15, 22)], 10, 1) == [5, 2, 1, 2]
    assert share_out([a_pool(n) for n in (5, 5)], 3, 1) == [2, 1]


def test_every_pool_gets_a_set_if_there_are_enough() -> None:
    # 97, 1, 1, 1 of 100: 4.85 sets and three times 0.05.
    assert share_out([a_pool(n) for n in (97, 1, 1, 1)], 5, 1) == [2, 1, 1, 1]
    assert share_out([a_pool(n) for n in (97, 1, 1, 1)], 4, 1) == [1, 1, 1, 1]


def test_scarce_sets_rotate_over_all_pools() -> None:
    pools = [a_pool(n) for n in (6, 3, 1)]
    turns = Counter(share_out(pools, 1, seed).index(1) for seed in range(1000))
    assert [round(turns[number] / 100) for number in range(3)] == [6, 3, 1]
    assert all(sorted(share_out(pools, 2, seed)) == [0, 1, 1] for seed in range(10))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.data())
def test_no_pool_gets_more_sets_than_devices(devices: list[int], data: st.DataObject) -> None:
    sets = data.draw(st.integers(1, sum(devices)))
    shares = share_out([a_pool(n) for n in devices], sets, 1)
    assert sum(shares) == sets
    assert all(share <= count for share, count in zip(shares, devices, strict=True))
    if sets >= len(devices):
        assert min(shares) >= 1
        due = [sets * count / sum(devices) for count in devices]
        assert all(share < mine + 1 or share == 1 for share, mine in zip(shares, due, strict=True))


def test_set_sizes_are_level() -> None:
    assert level(10, 3) == [4, 3, 3]
    assert level(10, 3, 2) == [2, 2, 2]
    assert level(8, 3, 4) == [3, 3, 2]
    assert level(3, 3, 4) == [1, 1, 1]


def test_groups_alternate_over_sites_of_a_pool() -> None:
    plan = place_groups(DevicePool((1, 4), (7, 8, 9)), [[2], [0], [1]])
    assert plan == [(1, (9,)), (4, (7,)), (1, (8,))]


def test_single_device_goes_to_the_site_with_the_fewest() -> None:
    reach = np.array([[True, False], [True, True], [False, True], [True, True]])
    assert place_alone([0, 1, 2, 3], reach) == [(0, (0,)), (1, (1,)), (1, (2,)), (0, (3,))]
    assert place_alone([3, 3, 1], reach) == [(0, (3,)), (1, (3,)), (0, (1,))]
