"""HierCluster's sets against a plain reading, with Ward's clusters computed pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierarchy.arranging.clustering import hiercluster_groups, ward_clusters, ward_merges
from sojourn.parts import HierClusterArranger


def wards(rows: NDArray[np.float64], clusters: int) -> list[list[int]]:
    """Ward by its definition: merge the pair whose merging adds least to the squared distances from the centroids."""
    found = [[number] for number in range(len(rows))]

    def cost(members: list[int]) -> float:
        return float(np.square(rows[members] - rows[members].mean(axis=0)).sum())

    while len(found) > clusters:
        pairs = [(a, b) for a in range(len(found)) for b in range(a)]
        a, b = min(pairs, key=lambda p: cost(found[p[0]] + found[p[1]]) - cost(found[p[0]]) - cost(found[p[1]]))
        found[b] += found.pop(a)
    return sorted(sorted(each) for each in found)


@pytest.mark.parametrize("seed", range(8))
def test_clusters_match_ward(seed: int) -> None:
    rows = np.random.default_rng(seed).random((14, 4))
    for clusters in (1, 2, 5, 14):
        assert ward_clusters(rows, clusters) == wards(rows, clusters)


def test_merge_tree_matches_ward_at_every_cluster_count() -> None:
    rows = np.random.default_rng(3).random((10, 3))
    nodes = {number: [number] for number in range(10)}
    for number, (left, right) in enumerate(ward_merges(rows)):
        nodes[10 + number] = sorted(nodes.pop(left) + nodes.pop(right))
        assert sorted(nodes.values()) == wards(rows, 9 - number)
    assert ward_merges(rows[:1]) == []


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 25), st.integers(0, 2**32))
def test_sets_draw_from_own_cluster_then_from_the_nearest(sets: int, size: int, devices: int, seed: int) -> None:
    sets = min(sets, devices)
    rows = np.random.default_rng(seed).random((devices, 3))
    groups = hiercluster_groups(HierClusterArranger(size=size), rows, sets, seed)
    clusters = wards(rows, sets)
    centroids = [rows[members].mean(axis=0) for members in clusters]
    wanted = [min(devices, sets * size) // sets + (n < min(devices, sets * size) % sets) for n in range(sets)]
    assert [len(group) for group in groups] == wanted
    members = [device for group in groups for device in group]
    assert len(set(members)) == len(members)
    # First all draw from their own cluster; then each takes from the nearest clusters until these are empty.
    left = [set(cluster) for cluster in clusters]
    for group, own, want in zip(groups, range(sets), wanted, strict=True):
        home = min(want, len(clusters[own]))
        assert set(group[:home]) <= left[own]
        left[own] -= set(group[:home])
    for group, own in zip(groups, range(sets), strict=True):
        near = sorted(range(sets), key=lambda n: (float(np.linalg.norm(centroids[n] - centroids[own])), n))
        for device in group[min(len(group), len(clusters[own])) :]:
            source = next(n for n in near if left[n])
            assert device in left[source]
            left[source].remove(device)


def test_small_cluster_is_filled_from_the_nearest_cluster() -> None:
    # Clusters {0, 1, 2, 3}, {4}, {5, 6, 7} at 0, 5 and 9: {4} is filled from 9, which is nearer than 0.
    rows = np.array([[0.0], [0.1], [0.2], [0.3], [5.0], [9.0], [9.1], [9.2]])
    for seed in range(20):
        first, second, third = hiercluster_groups(HierClusterArranger(size=2), rows, 3, seed)
        assert set(first) < {0, 1, 2, 3}
        assert second[0] == 4
        assert set(third) | {second[1]} == {5, 6, 7}


def test_each_set_contains_similar_devices() -> None:
    rows = np.repeat(np.eye(3), 5, axis=0)
    for seed in range(5):
        groups = hiercluster_groups(HierClusterArranger(size=4), rows, 3, seed)
        assert [{device // 5 for device in group} for group in groups] == [{0}, {1}, {2}]


def test_identical_devices_still_make_sets() -> None:
    groups = hiercluster_groups(HierClusterArranger(size=2), np.zeros((6, 3)), 3, 1)
    assert sorted(device for group in groups for device in group) == list(range(6))


def test_every_setting_changes_the_groups() -> None:
    rows = np.random.default_rng(1).random((30, 4))
    plain = hiercluster_groups(HierClusterArranger(size=3), rows, 4, 1)
    assert plain == hiercluster_groups(HierClusterArranger(size=3), rows, 4, 1)
    assert plain != hiercluster_groups(HierClusterArranger(size=3), rows, 4, 2)
    assert plain != hiercluster_groups(HierClusterArranger(size=4), rows, 4, 1)
    assert plain != hiercluster_groups(HierClusterArranger(size=3), rows, 3, 1)
