"""The greedy for large fleets: the literal sets without blocks, and nearly the literal VTS with blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierarchy.arranging import visit
from hierarchy.arranging.measures import vts
from hierarchy.arranging.visit import FleetBlock, visit_sets
from sojourn.parts import VisitArranger
from tests.hierarchy.arranging.reachability import reaches

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEEDS = st.integers(0, 2**32)
FAST, EXACT = VisitArranger(sets=1, size=3, search="fast"), VisitArranger(sets=1, size=3, search="exact")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "BLOCK_PLACES", 4)
    monkeypatch.setattr(visit, "LITERAL", 0)
    monkeypatch.setattr(visit, "BATCH_DEVICES", 12)


def skewed(devices: int, classes: int, alpha: float, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).dirichlet([alpha] * classes, devices)


def sized(sets: int, size: int, search: str) -> VisitArranger:
    return VisitArranger(sets=sets, size=size, search="fast" if search == "fast" else "exact")


def plainly(signatures: NDArray[np.float64], devices: list[int], sizes: list[int]) -> list[list[int]]:
    """Apply Algorithm 1 to these devices; each set starts with the first remaining one."""
    left, sets = list(devices), []
    for size in sizes:
        members = [left.pop(0)]
        while len(members) < size:
            means = [signatures[[*members, j]].mean(axis=0) for j in left]
            members.append(left.pop(int(np.argmax([mean.sum() / np.linalg.norm(mean) for mean in means]))))
        sets.append(members)
    return sets


@settings(deadline=None)
@given(reaches(), st.integers(1, 6), SEEDS)
def test_fast_equals_exact_if_no_blocks_are_needed(reach: NDArray[np.bool_], sets: int, seed: int) -> None:
    signatures = skewed(len(reach), 4, 0.5, seed)
    assert visit_sets(FAST, sets, signatures, reach, seed) == visit_sets(EXACT, sets, signatures, reach, seed)


def test_fast_equals_exact_for_600_devices() -> None:
    signatures, reach = skewed(600, 10, 0.1, 1), np.random.default_rng(1).random((600, 3)) < 0.6
    assert visit_sets(FAST, 120, signatures, reach, 5) == visit_sets(EXACT, 120, signatures, reach, 5)


def test_fast_equals_exact_for_many_sites() -> None:
    signatures, draw = skewed(600, 10, 0.1, 2), np.random.default_rng(2)
    shared, apart = draw.random((600, 12)) < 0.15, np.arange(600)[:, None] % 12 == np.arange(12)
    for reach in (shared, apart):
        fast = visit_sets(FAST, 150, signatures, reach, 5)
        assert fast == visit_sets(EXACT, 150, signatures, reach, 5)
        assert {site for site, _ in fast} == set(range(12))


@pytest.mark.usefixtures("small_blocks")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reaches(), st.integers(1, 9), SEEDS)
def test_blocks_keep_sites_sizes_and_reach(reach: NDArray[np.bool_], sets: int, seed: int) -> None:
    signatures = skewed(len(reach), 3, 0.5, seed)
    plan = visit_sets(FAST, sets, signatures, reach, seed)
    members = [device for _, each in plan for device in each]
    assert len(members) == len(set(members))
    assert all(reach[device, site] for site, each in plan for device in each)
    literal = visit_sets(EXACT, sets, signatures, reach, seed)
    assert [(site, len(each)) for site, each in plan] == [(site, len(each)) for site, each in literal]
    assert plan == visit_sets(FAST, sets, signatures, reach, seed)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("widest", [1, 131_072])
def test_blocks_of_larger_fleet_are_disjoint_and_seeded(widest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "MAX_CONSIDERED", widest)
    signatures, reach = skewed(300, 5, 0.2, 1), np.random.default_rng(1).random((300, 4)) < 0.5
    plan = visit_sets(FAST, 80, signatures, reach, 7)
    members = [device for _, each in plan for device in each]
    assert len(members) == len(set(members)) == 240
    assert all(reach[device, site] for site, each in plan for device in each)
    assert plan != visit_sets(FAST, 80, signatures, reach, 8)
    assert plan != visit_sets(EXACT, 80, signatures, reach, 7)


@pytest.mark.usefixtures("small_blocks")
def test_narrower_search_lowers_vts(monkeypatch: pytest.MonkeyPatch) -> None:
    signatures, reach = skewed(2000, 10, 0.1, 1), np.ones((2000, 1), bool)
    found = []
    for widest in (4, 1000):
        monkeypatch.setattr(visit, "MAX_CONSIDERED", widest)
        found.append(vts(signatures, [each for _, each in visit_sets(FAST, 20, signatures, reach, 1)]))
    assert found[0] < found[1] - 0.05


def test_batched_blocks_each_match_algorithm_1() -> None:
    signatures = skewed(60, 5, 0.3, 3)
    order = np.random.default_rng(3).permutation(60)
    batch = [
        FleetBlock(order[:30], np.array([0, 1, 2, 3]), np.array([5, 5, 4, 4])),
        FleetBlock(order[30:50], np.array([4, 5]), np.array([3, 6])),
        FleetBlock(order[50:], np.array([6]), np.array([10])),
    ]
    for block, found in zip(batch, visit._grow(signatures, batch), strict=True):
        sets = plainly(signatures, block.devices.tolist(), block.sizes.tolist())
        rows = [row[:size].tolist() for row, size in zip(found, block.sizes, strict=False)]
        assert rows == sets
        assert (found[len(sets) :] == -1).all()


def test_extreme_and_zero_signatures_are_handled() -> None:
    signatures = np.concatenate([skewed(20, 4, 0.3, 1) * 1e30, skewed(20, 4, 0.3, 2), np.zeros((20, 4))])
    (found,) = visit._grow(signatures, [FleetBlock(np.arange(60), np.arange(20), np.full(20, 3))])
    assert sorted(found.ravel().tolist()) == list(range(60))


@pytest.mark.parametrize(
    ("devices", "sets", "size", "classes", "alpha"),
    [(5000, 500, 10, 10, 0.05), (5000, 2500, 2, 10, 1.0), (6000, 225, 20, 10, 0.05)],
)
def test_fast_vts_is_within_one_percent_of_exact(
    devices: int, sets: int, size: int, classes: int, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "LITERAL", 0)
    signatures, reach = skewed(devices, classes, alpha, 2), np.ones((devices, 1), bool)
    fast, exact = (visit_sets(sized(sets, size, search), sets, signatures, reach, 1) for search in ("fast", "exact"))
    assert fast != exact
    assert vts(signatures, [each for _, each in fast]) >= 0.99 * vts(signatures, [each for _, each in exact])
