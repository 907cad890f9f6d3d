"""Inter-cluster grouping: assignments against brute force and scipy, groups against random ones."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from hierarchy.arranging import icg
from hierarchy.arranging.icg import assign, equal_clusters, icg_groups
from hierarchy.arranging.measures import cpd
from sojourn.parts import IcgArranger

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEEDS = st.integers(0, 2**32)


def label_counts(devices: int, classes: int, alpha: float, seed: int) -> NDArray[np.float64]:
    draw = np.random.default_rng(seed)
    return draw.multinomial(100, draw.dirichlet([alpha] * classes, devices)).astype(float)


def cost_of(costs: NDArray[np.float64], column: NDArray[np.int64]) -> float:
    return float(costs[np.arange(len(costs)), column].sum())


def spread(rows: NDArray[np.float64], cluster: NDArray[np.int64]) -> float:
    return sum(float(np.var(rows[cluster == number], axis=0).sum()) for number in np.unique(cluster))


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), SEEDS)
def test_assignment_cost_matches_brute_force(clusters: int, size: int, seed: int) -> None:
    costs = np.random.default_rng(seed).random((clusters * size, clusters))
    column = assign(costs)
    assert np.bincount(column, minlength=clusters).tolist() == [size] * clusters
    every = (cost_of(costs, np.array(order)) for order in permutations(np.repeat(np.arange(clusters), size)))
    assert cost_of(costs, column) == pytest.approx(min(every), abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 8), st.integers(2, 12), st.sampled_from([1e-9, 1.0, 1e12]), SEEDS)
def test_assignment_cost_matches_scipy(clusters: int, size: int, scale: float, seed: int) -> None:
    costs = np.random.default_rng(seed).lognormal(0, 3, (clusters * size, clusters)) * scale
    rows, columns = linear_sum_assignment(np.repeat(costs, size, axis=1))
    best = cost_of(costs[rows], columns // size)
    assert cost_of(costs, assign(costs)) == pytest.approx(best, rel=1e-9)


def test_full_cluster_passes_devices_to_the_next() -> None:
    # All prefer column 0; the two that lose least by moving go to column 1.
    costs = np.array([[0.0, 5.0], [1.0, 2.0], [0.0, 9.0], [3.0, 4.5]])
    assert assign(costs).tolist() == [0, 1, 0, 1]
    assert sorted(assign(np.zeros((6, 3))).tolist()) == [0, 0, 1, 1, 2, 2]


def test_clusters_match_hand_computation() -> None:
    rows = np.array([[0.0], [100.0], [1.0], [101.0], [50.0], [51.0]])
    for seed in range(10):
        cluster = equal_clusters(rows, 3, 10, np.random.default_rng(seed))
        assert cluster[0] == cluster[2] != cluster[1] == cluster[3] != cluster[4] == cluster[5]


def test_more_iterations_tighten_the_clusters() -> None:
    rows = label_counts(200, 10, 0.5, 1)
    once, often = (
        [spread(rows, equal_clusters(rows, 10, iterations, np.random.default_rng(seed))) for seed in range(5)]
        for iterations in (1, 10)
    )
    assert all(after < before for before, after in zip(once, often, strict=True))
    groups = [icg_groups(IcgArranger(iterations=iterations), rows, 20, 1) for iterations in (1, 10)]
    assert groups[0] != groups[1]


def test_best_of_several_starts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = label_counts(60, 10, 0.5, 1)
    found = {}
    for starts in (1, 6):
        monkeypatch.setattr(icg, "MAX_STARTS", starts)
        found[starts] = [spread(rows, equal_clusters(rows, 6, 10, np.random.default_rng(seed))) for seed in range(8)]
    # The first of the six is the best one.
    assert all(several <= one for several, one in zip(found[6], found[1], strict=True))
    assert np.mean(found[6]) < np.mean(found[1])


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 50), SEEDS)
def test_groups_are_equal_and_leftover_devices_rest(devices: int, sets: int, seed: int) -> None:
    groups = icg_groups(IcgArranger(), label_counts(devices, 4, 0.5, seed), sets, seed)
    clusters = max(1, devices // sets)
    assert [len(group) for group in groups] == [clusters] * (devices // clusters)
    members = [device for group in groups for device in group]
    assert len(members) == len(set(members)) == devices - devices % clusters
    assert set(members) <= set(range(devices))


def test_group_count_may_exceed_the_requested_count() -> None:
    # L = floor(11 / 4) = 2, so floor(11 / 2) = 5 groups, and one device rests: not always the same one.
    rows = label_counts(11, 4, 0.5, 1)
    plans = [icg_groups(IcgArranger(), rows, 4, seed) for seed in range(40)]
    assert all(len(plan) == 5 for plan in plans)
    assert len({frozenset(range(11)) - {d for group in plan for d in group} for plan in plans}) > 5
    assert icg_groups(IcgArranger(), rows, 4, 3) == plans[3] != plans[4]
    assert icg_groups(IcgArranger(), rows[:0], 4, 3) == []


def test_every_group_has_one_device_of_each_cluster() -> None:
    # Four kinds of devices, five of each, mixed: clusters are obvious, so groups have one of each kind.
    kind = np.random.default_rng(1).permutation(np.repeat(np.arange(4), 5))
    rows = np.eye(4)[kind] * 100 + np.random.default_rng(2).random((20, 4))
    partners = set()
    for seed in range(20):
        groups = icg_groups(IcgArranger(), rows, 5, seed)
        assert [sorted(kind[group].tolist()) for group in groups] == [[0, 1, 2, 3]] * 5
        partners |= {frozenset(group) for group in groups}
    assert len(partners) > 50


def test_raw_counts_decide_instead_of_shares() -> None:
    # The same shares throughout: only the amount of data differs.
    rows = np.outer([1.0, 50.0, 2.0, 51.0], [1.0, 1.0])
    for seed in range(10):
        assert all(set(group) in ({0, 1}, {0, 3}, {2, 1}, {2, 3}) for group in icg_groups(IcgArranger(), rows, 2, seed))


@pytest.mark.parametrize(("devices", "sets"), [(120, 3), (120, 40), (125, 12), (7, 1)])
def test_partitioned_fleet_keeps_equal_groups(devices: int, sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = label_counts(devices, 5, 0.1, 1)
    together = icg_groups(IcgArranger(), rows, sets, 1)
    for name, value in (("ARCS", 0), ("CLUSTERS", 4), ("DEVICES", 24)):
        monkeypatch.setattr(icg, name, value)
    groups = icg_groups(IcgArranger(), rows, sets, 1)
    assert [len(group) for group in groups] == [len(group) for group in together]
    assert {d for group in groups for d in group} == {d for group in together for d in group}


def uneven_counts(alpha: float, seed: int) -> NDArray[np.float64]:
    """Devices of 50 to 500 samples."""
    draw = np.random.default_rng(seed)
    sizes, shares = draw.integers(50, 500, 100), draw.dirichlet([alpha] * 10, 100)
    return np.array([draw.multinomial(size, share) for size, share in zip(sizes, shares, strict=True)], float)


def counts_by_class(alpha: float, seed: int) -> NDArray[np.float64]:
    """Return counts with every class dealt over the devices: a few have most of it, many have nearly nothing."""
    draw = np.random.default_rng(seed)
    return draw.multinomial(500, draw.dirichlet([alpha] * 100, 10)).T.astype(float)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["even", "uneven", "by class", "cut"])
def test_groups_are_more_similar_than_random_ones(alpha: float, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "cut":
        monkeypatch.setattr(icg, "ARCS", 0)
        monkeypatch.setattr(icg, "DEVICES", 50)
    found, random = [], []
    for seed in range(4):
        split = {"uneven": uneven_counts, "by class": counts_by_class}.get(kind, lambda *at: label_counts(100, 10, *at))
        counts = split(alpha, seed)
        found.append(cpd(counts, icg_groups(IcgArranger(), counts, 10, seed)))
        order = np.random.default_rng(seed).permutation(100)
        random.append(cpd(counts, order.reshape(10, 10).tolist()))
    assert np.mean(found) <= (0.8 if kind == "cut" else 0.6) * np.mean(random)


def test_more_draws_make_groups_more_similar() -> None:
    counts = label_counts(100, 10, 0.5, 1)
    once, often = (icg_groups(IcgArranger(draws=draws), counts, 10, 1) for draws in (1, 50))
    assert once != often
    assert cpd(counts, often) < cpd(counts, once)
