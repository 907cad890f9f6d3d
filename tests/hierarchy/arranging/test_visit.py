"""VISIT's greedy against a plain reading of Algorithm 1, and its sets with limited reachability."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierarchy.arranging import visit
from hierarchy.arranging.visit import visit_sets
from sojourn.parts import VisitArranger
from tests.hierarchy.arranging.reachability import matched, reaches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SEEDS = st.integers(0, 2**32)
Plan = list[tuple[int, tuple[int, ...]]]


def everywhere(devices: int, sites: int = 1) -> NDArray[np.bool_]:
    return np.ones((devices, sites), bool)


def skewed(devices: int, classes: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).dirichlet([0.3] * classes, devices)


def greedy(sets: int, size: int, signatures: NDArray[np.float64], reach: NDArray[np.bool_], seed: int) -> Plan:
    return visit_sets(VisitArranger(sets=sets, size=size, search="exact"), sets, signatures, reach, seed)


def similarity(rows: list[list[float]]) -> float:
    mean = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    length = math.hypot(*mean)
    return math.fsum(mean) / (length * math.sqrt(len(mean))) if length else 0.0


def algorithm_1(signatures: list[list[float]], starts: list[int], k: int) -> list[list[int]]:
    """Lines 12 to 22 literally, with the random choices of line 14 given."""
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


def demands_of(plan: Sequence[tuple[int, int]]) -> dict[int, int]:
    demands: Counter[int] = Counter()
    for site, size in plan:
        demands[site] += size
    return dict(demands)


def test_three_devices_match_hand_computation() -> None:
    # a = (1, 0), b = (0, 1), c = (1, 1). From a: b gives 1, c gives 3 / sqrt(10). From c: a and b tie, a is lower.
    signatures = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    tours = {greedy(1, 3, signatures, everywhere(3), seed)[0][1] for seed in range(40)}
    assert tours == {(0, 1, 2), (1, 0, 2), (2, 0, 1)}


def test_two_sets_of_opposites_match_hand_computation() -> None:
    signatures = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    for seed in range(20):
        (_, first), (_, second) = greedy(2, 2, signatures, everywhere(4), seed)
        assert first in {(0, 2), (1, 2), (2, 0), (3, 0)}
        assert {sum(signatures[list(each)].sum(axis=0) == 1) for each in (first, second)} == {2}


def test_zero_signature_comes_last() -> None:
    # From (0, 0) any cosine is that of the newcomer alone: (1, 1) is on target, (1, 0) is not.
    signatures = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    tours = {greedy(1, 3, signatures, everywhere(3), seed)[0][1] for seed in range(40)}
    assert tours == {(0, 2, 1), (1, 2, 0), (2, 0, 1)}


def test_ties_do_not_depend_on_summation_order() -> None:
    # 0.1 + 0.2 + 0.3 differs in the last bit from 0.3 + 0.2 + 0.1; the lowest number must still win.
    signatures = np.array([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.2, 0.3, 0.1], [0.3, 0.1, 0.2]])
    for seed in range(30):
        ((_, tour),) = greedy(1, 2, signatures, everywhere(5), seed)
        if tour[0] == 0:
            assert tour == (0, 1)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 5), st.integers(1, 6), st.integers(1, 3), SEEDS)
def test_sets_match_algorithm_1(sets: int, size: int, more: int, classes: int, sites: int, seed: int) -> None:
    signatures = skewed(sets * size + more, classes, seed)
    plan = greedy(sets, size, signatures, everywhere(len(signatures), sites), seed)
    starts = [members[0] for _, members in plan]
    assert [list(members) for _, members in plan] == algorithm_1(signatures.tolist(), starts, size)


def test_every_device_can_start() -> None:
    signatures = skewed(6, 3, 1)
    starts = Counter(greedy(1, 2, signatures, everywhere(6), seed)[0][1][0] for seed in range(600))
    assert set(starts) == set(range(6))
    assert min(starts.values()) > 60


def test_sets_of_one_cover_every_device() -> None:
    plan = greedy(7, 1, skewed(7, 3, 2), everywhere(7), 5)
    assert sorted(members for _, members in plan) == [(device,) for device in range(7)]


def test_one_set_of_all_is_a_chain() -> None:
    ((_, tour),) = greedy(1, 7, skewed(7, 3, 2), everywhere(7), 5)
    assert sorted(tour) == list(range(7))


def test_too_few_devices_make_balanced_sets() -> None:
    plan = greedy(3, 4, skewed(8, 3, 2), everywhere(8), 5)
    assert sorted(len(members) for _, members in plan) == [2, 3, 3]


def test_other_seed_yields_other_sets() -> None:
    signatures = skewed(40, 5, 3)
    plans = [greedy(4, 4, signatures, everywhere(40), seed) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_greedy_is_more_balanced_than_random() -> None:
    signatures = skewed(100, 10, 4)
    plan = greedy(9, 4, signatures, everywhere(100), 1)
    rows = signatures.tolist()
    found = np.mean([similarity([rows[n] for n in members]) for _, members in plan])
    order = np.random.default_rng(1).permutation(100)[:36].reshape(9, 4)
    assert found > np.mean([similarity([rows[n] for n in members]) for members in order]) + 0.05


def test_site_leaves_shared_devices_to_a_site_without_others() -> None:
    # Site 0 reaches all, site 1 only the two that would complete any set of site 0 best.
    signatures = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    reach = np.array([[True, False], [True, False], [True, True], [True, True]])
    for seed in range(20):
        plan = dict(greedy(2, 2, signatures, reach, seed))
        assert (sorted(plan[0]), sorted(plan[1])) == ([0, 1], [2, 3])


@settings(deadline=None)
@given(reaches(), st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_sets_respect_reach_and_size(reach: NDArray[np.bool_], sets: int, size: int, seed: int) -> None:
    plan = greedy(sets, size, skewed(len(reach), 3, seed), reach, seed)
    members = [device for _, each in plan for device in each]
    assert len(members) == len(set(members))
    assert all(reach[device, site] for site, each in plan for device in each)
    assert all(1 <= len(each) <= size for _, each in plan)
    assert len(plan) == min(sets, int(reach.any(axis=1).sum()))
    assert plan == greedy(sets, size, skewed(len(reach), 3, seed), reach, seed)


@settings(deadline=None)
@given(reaches(), st.integers(1, 6), st.integers(1, 4), SEEDS)
def test_set_sizes_are_as_level_as_possible(reach: NDArray[np.bool_], sets: int, size: int, seed: int) -> None:
    plan = greedy(sets, size, skewed(len(reach), 3, seed), reach, seed)
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


def test_requested_set_count_overrides_the_setting() -> None:
    assert len(visit_sets(VisitArranger(sets=2, size=2), 5, skewed(12, 3, 1), everywhere(12), 1)) == 5


def test_auto_search_switches_to_fast_above_work_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of two places, so that both ways differ in a small fleet too.
    monkeypatch.setattr(visit, "BLOCK_PLACES", 2)
    monkeypatch.setattr(visit, "LITERAL", 0)
    signatures, reach = skewed(40, 5, 3), everywhere(40)
    exact = visit_sets(VisitArranger(size=4, search="exact"), 8, signatures, reach, 1)
    fast = visit_sets(VisitArranger(size=4, search="fast"), 8, signatures, reach, 1)
    auto = visit_sets(VisitArranger(size=4), 8, signatures, reach, 1)
    assert auto == exact != fast
    # 32 places, 40 devices, 5 classes and a site.
    for most, expected in ((32 * 40 * 6, exact), (32 * 40 * 6 - 1, fast)):
        monkeypatch.setattr(visit, "MAX_LITERAL_WORK", most)
        assert visit_sets(VisitArranger(size=4), 8, signatures, reach, 1) == expected
