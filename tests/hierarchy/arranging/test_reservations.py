"""Reservations of devices for sites, against matchings found by augmenting paths."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hierarchy.arranging.reservations import Reservations, deal, share_sets
from sojourn.randomness import generator
from tests.hierarchy.arranging.reachability import matched, reaches

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEEDS = st.integers(0, 2**32)


def test_sites_get_sets_in_proportion() -> None:
    # 12 and 4 devices: one each, then 12 / 2, 12 / 3, ... against 4 / 2; at 12 / 6 they tie.
    reach = np.array([[True, False]] * 12 + [[False, True]] * 4)
    assert share_sets(Reservations(reach), reach.sum(axis=0), 4, generator(0)) == [0, 1, 0, 0]
    assert share_sets(Reservations(reach), reach.sum(axis=0), 8, generator(0)) == [0, 1, 0, 0, 0, 0, 0, 1]


def test_small_site_gets_a_set_if_there_are_enough() -> None:
    reach = np.array([[True, False]] * 99 + [[False, True]])
    assert set(share_sets(Reservations(reach), reach.sum(axis=0), 2, generator(0))) == {0, 1}


def test_scarce_sets_rotate_over_all_sites() -> None:
    reach = np.array([[True, False, False]] * 6 + [[False, True, False]] * 3 + [[False, False, True]])
    turns = Counter(share_sets(Reservations(reach), reach.sum(axis=0), 1, generator(seed))[0] for seed in range(1000))
    assert [round(turns[site] / 100) for site in range(3)] == [6, 3, 1]


@settings(deadline=None)
@given(reaches(), SEEDS)
def test_candidates_keep_every_reservation_satisfiable(reach: NDArray[np.bool_], seed: int) -> None:
    draw = np.random.default_rng(seed)
    reservations, demands, left = Reservations(reach), Counter[int](), reach.copy()
    for site in draw.integers(0, reach.shape[1], 8).tolist():
        grown = demands + Counter([site])
        assert reservations.claim(site) == matched(reach, dict(grown))
        demands = grown if matched(reach, dict(grown)) else demands
    while +demands:
        site = int(draw.choice(sorted(+demands)))
        demands[site] -= 1
        safe = []
        for device in np.flatnonzero(left[:, site]).tolist():
            without = left.copy()
            without[device] = False
            if matched(without, dict(+demands)):
                safe.append(device)
        assert reservations.candidates(site).tolist() == safe
        device = int(draw.choice(safe))
        reservations.take(site, device)
        left[device] = False


@settings(deadline=None)
@given(reaches(), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=6))
def test_bulk_claim_equals_repeated_single_claims(reach: NDArray[np.bool_], asks: list[tuple[int, int]]) -> None:
    at_once, one_by_one = Reservations(reach), Reservations(reach)
    for number, places in asks:
        site = number % reach.shape[1]
        got = at_once.claim(site, places)
        assert got == sum(one_by_one.claim(site) for _ in range(places))
        assert got == places or at_once.claim(site) == 0


@settings(deadline=None)
@given(reaches(), st.lists(st.integers(0, 3), max_size=9), SEEDS)
def test_split_gives_every_site_its_reserved_devices(reach: NDArray[np.bool_], asks: list[int], seed: int) -> None:
    reservations, promised = Reservations(reach), Counter[int]()
    for site in (number % reach.shape[1] for number in asks):
        promised[site] += reservations.claim(site)
    parts = reservations.split(generator(seed))
    assert all(len(part) >= promised[site] and reach[part, site].all() for site, part in enumerate(parts))
    dealt = np.concatenate(parts).tolist()
    assert len(dealt) == len(set(dealt))
    # Every device that reaches a site with promises is offered.
    busy = [site for site in range(reach.shape[1]) if promised[site]]
    assert set(dealt) == set(np.flatnonzero(reach[:, busy].any(axis=1)).tolist())
    named = [device for site in range(reach.shape[1]) for device in reservations.promised(site)]
    assert len(named) == len(set(named)) == promised.total()


def test_split_shares_free_devices_by_reservation() -> None:
    reservations = Reservations(np.ones((100, 2), bool))
    assert (reservations.claim(0, 6), reservations.claim(1, 2)) == (6, 2)
    # 92 are free: three in four go to the site with three in four places.
    parts = reservations.split(generator(1))
    assert [len(part) for part in parts] == [6 + 69, 2 + 23]
    assert not np.array_equal(parts[0], reservations.split(generator(2))[0])


def test_places_are_dealt_in_turn() -> None:
    # Only site 0 reaches four of the devices, only site 1 one, and one is shared: the first site in a turn gets it.
    reach = np.array([[True, False]] * 4 + [[False, True], [True, True]])
    assert deal(Reservations(reach), [0, 1, 0], 3) == [2, 2, 2]
    assert deal(Reservations(reach), [0, 1], 9) == [4, 2]
    assert deal(Reservations(reach), [1, 0], 1) == [1, 1]
    assert deal(Reservations(reach), [], 3) == []
    assert deal(Reservations(reach), [0, 1], 0) == [0, 0]


def test_empty_fleet_has_no_reservations() -> None:
    reservations = Reservations(np.zeros((0, 2), bool))
    assert reservations.claim(1) == 0
    assert share_sets(reservations, np.zeros(2, np.int64), 3, generator(0)) == []
    assert [part.tolist() for part in reservations.split(generator(0))] == [[], []]
