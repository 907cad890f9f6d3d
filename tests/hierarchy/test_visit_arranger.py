"""VISIT's greedy against a plain reading of Algorithm 1, and its sets under a reachability map."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierarchy.visit_arranger import Seats, share_sets, visit_sets
from sojourn.parts import VisitArranger
from sojourn.randomness import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SEEDS = st.integers(0, 2**32)
Plan = list[tuple[int, tuple[int, ...]]]


def everywhere(devices: int, sites: int = 1) -> NDArray[np.bool_]:
    return np.ones((devices, sites), bool)


def skewed(devices: int, classes: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).dirichlet([0.3] * classes, devices)


def similarity(rows: list[list[float]]) -> float:
    mean = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    length = math.hypot(*mean)
    return math.fsum(mean) / (length * math.sqrt(len(mean))) if length else 0.0


def algorithm_1(signatures: list[list[float]], starts: list[int], k: int) -> list[list[int]]:
    """Lines 12 to 22 as they stand, with the random choices of line 14 given."""
    remaining = set(range(len(signatures)))
    sets = []
    for i in starts:
        members = [i]
        remaining.remove(i)
        for _ in range(k - 1):
            scores = {j: similarity([signatures[n] for n in [*members, j]]) for j in sorted(remaining)}
            j = next(j for j in scores if scores[j] >= max(scores.values()) - 1e-12)
            members.append(j)
            remaining.remove(j)
        sets.append(members)
    return sets


def matched(reach: NDArray[np.bool_], demands: dict[int, int]) -> bool:
    """Whether every site can have as many devices as it demands, one after another by augmenting paths."""
    owner: dict[int, int] = {}

    def place(site: int, seen: set[int]) -> bool:
        for device in np.flatnonzero(reach[:, site]).tolist():
            if device not in seen:
                seen.add(device)
                if device not in owner or place(owner[device], seen):
                    owner[device] = site
                    return True
        return False

    return all(place(site, set()) for site, demand in demands.items() for _ in range(demand))


def demands_of(plan: Sequence[tuple[int, int]]) -> dict[int, int]:
    demands: Counter[int] = Counter()
    for site, size in plan:
        demands[site] += size
    return dict(demands)


@st.composite
def reaches(draw: st.DrawFn) -> NDArray[np.bool_]:
    sites = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=sites, max_size=sites), min_size=1, max_size=12))
    return np.array(rows, bool)


def test_by_hand_three_devices() -> None:
    # a = (1, 0), b = (0, 1), c = (1, 1). From a: b gives 1, c gives 3 / sqrt(10). From c: a and b tie, a is lower.
    signatures = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    whole = VisitArranger(sets=1, size=3)
    tours = {visit_sets(whole, signatures, everywhere(3), seed)[0][1] for seed in range(40)}
    assert tours == {(0, 1, 2), (1, 0, 2), (2, 0, 1)}


def test_by_hand_two_sets_of_opposites() -> None:
    signatures = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    for seed in range(20):
        (_, first), (_, second) = visit_sets(VisitArranger(sets=2, size=2), signatures, everywhere(4), seed)
        assert first in {(0, 2), (1, 2), (2, 0), (3, 0)}
        assert {sum(signatures[list(each)].sum(axis=0) == 1) for each in (first, second)} == {2}


def test_a_zero_signature_comes_last() -> None:
    # From (0, 0) any cosine is that of the newcomer alone: (1, 1) is on target, (1, 0) is not.
    signatures = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    tours = {visit_sets(VisitArranger(sets=1, size=3), signatures, everywhere(3), seed)[0][1] for seed in range(40)}
    assert tours == {(0, 2, 1), (1, 2, 0), (2, 0, 1)}


def test_sums_in_another_order_do_not_break_ties() -> None:
    # 0.1 + 0.2 + 0.3 differs in the last bit from 0.3 + 0.2 + 0.1; the lowest number must win all the same.
    signatures = np.array([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.3, 0.1], [0.3, 0.1, 0.2]])
    for seed in range(30):
        ((_, tour),) = visit_sets(VisitArranger(sets=1, size=2), signatures, everywhere(5), seed)
        if tour[0] == 0:
            assert tour == (0, 1)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 5), st.integers(1, 6), st.integers(1, 3), SEEDS)
def test_it_is_algorithm_1(sets: int, size: int, more: int, classes: int, sites: int, seed: int) -> None:
    signatures = skewed(sets * size + more, classes, seed)
    plan = visit_sets(VisitArranger(sets=sets, size=size), signatures, everywhere(len(signatures), sites), seed)
    starts = [members[0] for _, members in plan]
    assert [list(members) for _, members in plan] == algorithm_1(signatures.tolist(), starts, size)


def test_every_device_can_start() -> None:
    signatures = skewed(6, 3, 1)
    starts = Counter(
        visit_sets(VisitArranger(sets=1, size=2), signatures, everywhere(6), seed)[0][1][0] for seed in range(600)
    )
    assert set(starts) == set(range(6))
    assert min(starts.values()) > 60


def test_sets_of_one_are_every_device_alone() -> None:
    plan = visit_sets(VisitArranger(sets=7, size=1), skewed(7, 3, 2), everywhere(7), 5)
    assert sorted(members for _, members in plan) == [(device,) for device in range(7)]


def test_one_set_of_all_is_a_chain() -> None:
    ((_, tour),) = visit_sets(VisitArranger(sets=1, size=7), skewed(7, 3, 2), everywhere(7), 5)
    assert sorted(tour) == list(range(7))


def test_too_few_devices_make_balanced_sets() -> None:
    plan = visit_sets(VisitArranger(sets=3, size=4), skewed(8, 3, 2), everywhere(8), 5)
    assert sorted(len(members) for _, members in plan) == [2, 3, 3]


def test_shuffled_is_another_order_of_the_same_sets() -> None:
    signatures = skewed(40, 5, 3)
    added = visit_sets(VisitArranger(sets=4, size=6), signatures, everywhere(40), 9)
    shuffled = visit_sets(VisitArranger(sets=4, size=6, order="shuffled"), signatures, everywhere(40), 9)
    assert added != shuffled
    assert [sorted(members) for _, members in added] == [sorted(members) for _, members in shuffled]


@pytest.mark.parametrize("order", ["addition", "shuffled"])
def test_passes_repeat_the_tour(order: str) -> None:
    signatures = skewed(12, 5, 3)
    once = VisitArranger(sets=2, size=4, order="shuffled" if order == "shuffled" else "addition")
    thrice = VisitArranger(sets=2, size=4, order=once.order, passes=3)
    plan = visit_sets(once, signatures, everywhere(12), 9)
    assert visit_sets(thrice, signatures, everywhere(12), 9) == [(site, members * 3) for site, members in plan]


def test_another_seed_gives_other_sets() -> None:
    signatures = skewed(40, 5, 3)
    plans = [visit_sets(VisitArranger(sets=4, size=4), signatures, everywhere(40), seed) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_greedy_beats_chance() -> None:
    signatures = skewed(100, 10, 4)
    plan = visit_sets(VisitArranger(sets=9, size=4), signatures, everywhere(100), 1)
    rows = signatures.tolist()
    greedy = np.mean([similarity([rows[n] for n in members]) for _, members in plan])
    order = np.random.default_rng(1).permutation(100)[:36].reshape(9, 4)
    assert greedy > np.mean([similarity([rows[n] for n in members]) for members in order]) + 0.05


def test_a_site_leaves_shared_devices_to_a_site_that_has_no_others() -> None:
    # Site 0 reaches all, site 1 only the two that would complete any set of site 0 best.
    signatures = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    reach = np.array([[True, False], [True, False], [True, True], [True, True]])
    for seed in range(20):
        plan = dict(visit_sets(VisitArranger(sets=2, size=2), signatures, reach, seed))
        assert (sorted(plan[0]), sorted(plan[1])) == ([0, 1], [2, 3])


def test_sites_get_sets_in_proportion() -> None:
    # 12 and 4 devices: one each, then 12 / 2, 12 / 3, ... against 4 / 2; at 12 / 6 they tie.
    reach = np.array([[True, False]] * 12 + [[False, True]] * 4)
    assert share_sets(Seats(reach), reach.sum(axis=0), 4, generator(0)) == [0, 1, 0, 0]
    assert share_sets(Seats(reach), reach.sum(axis=0), 8, generator(0)) == [0, 1, 0, 0, 0, 0, 0, 1]


def test_a_small_site_gets_a_set_when_there_are_enough() -> None:
    reach = np.array([[True, False]] * 99 + [[False, True]])
    assert set(share_sets(Seats(reach), reach.sum(axis=0), 2, generator(0))) == {0, 1}


def test_with_fewer_sets_than_sites_all_sites_have_their_turn() -> None:
    reach = np.array([[True, False, False]] * 6 + [[False, True, False]] * 3 + [[False, False, True]])
    turns = Counter(share_sets(Seats(reach), reach.sum(axis=0), 1, generator(seed))[0] for seed in range(1000))
    assert [round(turns[site] / 100) for site in range(3)] == [6, 3, 1]


@settings(deadline=None)
@given(reaches(), st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_sets_under_reachability(reach: NDArray[np.bool_], sets: int, size: int, seed: int) -> None:
    plan = visit_sets(VisitArranger(sets=sets, size=size), skewed(len(reach), 3, seed), reach, seed)
    members = [device for _, each in plan for device in each]
    assert len(members) == len(set(members))
    assert all(reach[device, site] for site, each in plan for device in each)
    assert all(1 <= len(each) <= size for _, each in plan)
    assert len(plan) == min(sets, int(reach.any(axis=1).sum()))
    assert plan == visit_sets(VisitArranger(sets=sets, size=size), skewed(len(reach), 3, seed), reach, seed)


@settings(deadline=None)
@given(reaches(), st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_sizes_are_as_level_as_can_be(reach: NDArray[np.bool_], sets: int, size: int, seed: int) -> None:
    plan = visit_sets(VisitArranger(sets=sets, size=size), skewed(len(reach), 3, seed), reach, seed)
    sizes = [(site, len(each)) for site, each in plan]
    for small, (site, count) in enumerate(sizes):
        if count == size:
            continue
        grown = [*sizes[:small], (site, count + 1), *sizes[small + 1 :]]
        assert not matched(reach, demands_of(grown))
        for large, (other, more) in enumerate(sizes):
            if more >= count + 2:
                evened = [*grown[:large], (other, more - 1), *grown[large + 1 :]]
                assert not matched(reach, demands_of(evened))


@settings(deadline=None)
@given(reaches(), SEEDS)
def test_candidates_are_exactly_those_that_leave_every_promise_intact(reach: NDArray[np.bool_], seed: int) -> None:
    draw = np.random.default_rng(seed)
    seats, demands, left = Seats(reach), Counter[int](), reach.copy()
    for site in draw.integers(0, reach.shape[1], 8).tolist():
        grown = demands + Counter([site])
        assert seats.claim(site) == matched(reach, dict(grown))
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
        assert np.flatnonzero(seats.candidates(site)).tolist() == safe
        device = int(draw.choice(safe))
        seats.take(site, device)
        left[device] = False
