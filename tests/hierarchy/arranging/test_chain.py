"""Sets that are whole sites."""

from __future__ import annotations

import numpy as np

from hierarchy.arranging.simple_sets import chain_sets, site_sets
from sojourn.parts import ChainArranger, SiteArranger

NAME, RANDOM = ChainArranger(order="name"), ChainArranger()
# Devices 0 to 3 reach the first site only, 4 to 7 both, 8 and 9 the second only, 10 none: 4 + 1 and 2 + 3.
REACH = np.array([[True, False]] * 4 + [[True, True]] * 4 + [[False, True]] * 2 + [[False, False]])


def test_chain_by_name_visits_every_device_once_site_by_site() -> None:
    assert chain_sets(NAME, REACH, 1) == [(0, (0, 1, 2, 3, 6)), (1, (4, 5, 7, 8, 9))]
    assert chain_sets(NAME, REACH, 2) == chain_sets(NAME, REACH, 1)


def test_random_chain_reorders_the_same_devices() -> None:
    first, same, other = (chain_sets(RANDOM, REACH, seed) for seed in (1, 1, 2))
    assert first == same != other
    assert [(site, tuple(sorted(row))) for site, row in first] == chain_sets(NAME, REACH, 1) != first


def test_site_without_own_devices_has_no_set() -> None:
    reach = np.array([[False, True, False], [False, True, False]])
    assert chain_sets(NAME, reach, 1) == [(1, (0, 1))]
    assert site_sets(SiteArranger(), reach, 1) == [(1, (0, 1))]


def test_site_sets_take_a_fraction_of_each_site() -> None:
    assert site_sets(SiteArranger(), REACH, 1) == chain_sets(NAME, REACH, 1)
    plan = site_sets(SiteArranger(fraction=0.5), REACH, 1)
    assert [(site, len(row)) for site, row in plan] == [(0, 2), (1, 2)]
    assert [len(row) for _, row in site_sets(SiteArranger(fraction=0.1), REACH, 1)] == [1, 1]
    assert plan == site_sets(SiteArranger(fraction=0.5), REACH, 1)
    assert len({tuple(site_sets(SiteArranger(fraction=0.5), REACH, seed)) for seed in range(20)}) > 5


def test_sites_draw_independently() -> None:
    # Two sites of ten: with one draw for both, they would always pick the same places.
    reach = np.array([[True, False]] * 10 + [[False, True]] * 10)
    places = [
        (list(first), [n - 10 for n in second])
        for (_, first), (_, second) in (site_sets(SiteArranger(fraction=0.3), reach, seed) for seed in range(10))
    ]
    assert any(first != second for first, second in places)
