"""CluSamp's distributions against the guarantees of Algorithm 2."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hierarchy.arranging.clustering import clusamp_picks, distributions
from sojourn.randomness import generator


def made(rows: NDArray[np.float64], samples: list[int], draws: int, seed: int = 1) -> NDArray[np.int64]:
    return distributions(rows, np.array(samples), draws, generator(seed, "test"))


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any), st.integers(1, 8), st.integers(0, 2**32))
def test_masses_equal_unbiased_sampling(samples: list[int], draws: int, seed: int) -> None:
    """Each distribution has mass 1, and each device has m·p_k over all of them (the paper's Proposition 1)."""
    table = made(np.random.default_rng(seed).random((len(samples), 3)), samples, draws, seed)
    assert table.shape == (draws, len(samples))
    assert (table >= 0).all()
    assert table.sum(axis=1).tolist() == [sum(samples)] * draws
    assert table.sum(axis=0).tolist() == [draws * each for each in samples]


def test_fitting_clusters_are_the_distributions() -> None:
    # Three clear clusters of a third of the data each.
    rows = np.repeat(np.eye(3), 3, axis=0)
    table = made(rows, [1, 2, 3, 2, 2, 2, 4, 1, 1], 3)
    assert sorted(map(tuple, table.tolist())) == sorted(
        [(3, 6, 9, 0, 0, 0, 0, 0, 0), (0, 0, 0, 6, 6, 6, 0, 0, 0), (0, 0, 0, 0, 0, 0, 12, 3, 3)]
    )


def test_overweight_cluster_is_cut_along_the_tree() -> None:
    # All four devices of one cluster hold 4/6; with 3 draws at most 2/6 fit, so it splits into its two pairs.
    rows = np.array([[0.0], [0.1], [1.0], [1.1], [50.0], [60.0]])
    table = made(rows, [1] * 6, 3)
    support = sorted(tuple(np.flatnonzero(masses).tolist()) for masses in table)
    assert support == [(0, 1), (2, 3), (4, 5)]


def test_leftovers_fill_lightest_distributions_first() -> None:
    # n = 10, m = 2: a cluster may hold 5. {0, 1} has 4, {2, 3} has 3; 4 (2) and 5 (1) are left over. In halves of a
    # sample: 8, 6, 4, 2 of 10. The lightest, 5, fills 2 of the 4 that {2, 3} lacks; 4 fills 2 more there and 2 above.
    rows = np.array([[0.0], [0.1], [10.0], [10.1], [100.0], [300.0]])
    samples = [2, 2, 2, 1, 2, 1]
    table = made(rows, samples, 2)
    assert table.tolist() == [[4, 4, 0, 0, 2, 0], [0, 0, 4, 2, 2, 2]]


def test_cluster_overweight_by_one_is_cut() -> None:
    # n = 5, m = 2: masses 4, 2 and 4 of 5. {0, 1} would be 6, so 1 is left over and fills both others.
    assert made(np.array([[0.0], [0.1], [9.0]]), [2, 1, 2], 2).tolist() == [[4, 1, 0], [0, 1, 4]]
    # n = 6: masses 4, 2, 4 and 2 of 6, and both pairs fit exactly.
    assert made(np.array([[0.0], [0.1], [9.0], [9.1]]), [2, 1, 2, 1], 2).tolist() == [[4, 2, 0, 0], [0, 0, 4, 2]]


def test_seed_decides_which_leftover_is_split() -> None:
    # n = 16, m = 2: masses 14, 10 and a cluster of 4 + 4, of which 6 go to the lighter one.
    rows = np.array([[0.0], [100.0], [50.0], [50.1]])
    tables = {str(made(rows, [7, 5, 2, 2], 2, seed).tolist()) for seed in range(20)}
    assert tables == {"[[14, 0, 0, 2], [0, 10, 4, 2]]", "[[14, 0, 2, 0], [0, 10, 2, 4]]"}


def test_data_rich_device_has_its_own_distributions() -> None:
    # 6 of 8 samples and 4 draws: a mass of 3, so it fills three of the four alone.
    table = made(np.eye(3), [6, 1, 1], 4)
    assert table.tolist() == [[8, 0, 0]] * 3 + [[0, 4, 4]]
    picks = clusamp_picks(np.eye(3), np.array([6, 1, 1]), 4, 1)
    assert picks[:3] == [0, 0, 0]
    assert picks[3] in {1, 2}


def test_never_visited_devices_form_one_cluster() -> None:
    # Rows of zeros share a distribution; they do not mix with the two distant ones.
    rows = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 0.0], [9.1, 0.0]])
    table = made(rows, [1] * 4, 2)
    assert sorted(tuple(np.flatnonzero(masses).tolist()) for masses in table) == [(0, 2), (1, 3)]
    all_new = made(np.zeros((6, 3)), [1] * 6, 3)
    assert all_new.sum(axis=1).tolist() == [6] * 3


def test_draws_follow_masses_with_one_per_cluster() -> None:
    rows = np.repeat(np.eye(2), 2, axis=0)
    samples = np.array([3, 1, 2, 2])
    drawn: Counter[int] = Counter()
    for seed in range(700):
        picks = clusamp_picks(rows, samples, 2, seed)
        assert sorted(pick // 2 for pick in picks) == [0, 1]
        drawn.update(picks)
    assert [drawn[device] / 700 for device in range(4)] == pytest.approx([0.75, 0.25, 0.5, 0.5], abs=0.06)


def test_single_device_is_drawn() -> None:
    assert clusamp_picks(np.ones((1, 2)), np.array([5]), 1, 1) == [0]


def test_devices_without_samples_are_never_drawn() -> None:
    rows = np.random.default_rng(1).random((6, 2))
    drawn = {pick for seed in range(100) for pick in clusamp_picks(rows, np.array([3, 0, 2, 0, 4, 1]), 3, seed)}
    assert drawn == {0, 2, 4, 5}


def test_draws_depend_on_rows_samples_count_and_seed() -> None:
    rows = np.random.default_rng(1).random((30, 3))
    samples = np.random.default_rng(2).integers(1, 60, 30)
    plain = [clusamp_picks(rows, samples, 6, seed) for seed in range(5)]
    assert plain == [clusamp_picks(rows, samples, 6, seed) for seed in range(5)]
    assert plain[0] != plain[1]
    assert plain != [clusamp_picks(rows[::-1], samples, 6, seed) for seed in range(5)]
    assert plain != [clusamp_picks(rows, samples[::-1], 6, seed) for seed in range(5)]
    assert plain != [clusamp_picks(rows, samples, 5, seed) for seed in range(5)]
