"""FedSeq's metrics, one pair at a time, against scipy and plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.spatial import distance

from hierarchy.arranging.rows import as_distributions, balance, cosine, divergence, gini, tau, wasserstein
from sojourn.parts import FedSeqArranger

ROWS = np.random.default_rng(1).dirichlet([0.4] * 6, 20)
ESTIMATE = np.random.default_rng(2).dirichlet([0.4] * 6)


def test_wasserstein_matches_scipy_over_the_class_index() -> None:
    places = np.arange(6)
    expected = [stats.wasserstein_distance(places, places, row, ESTIMATE) for row in ROWS]
    assert wasserstein(ROWS, ESTIMATE) == pytest.approx(expected, abs=1e-12)
    # All mass moves from class 0 to class 2.
    assert wasserstein(np.array([[0.0, 0.0, 1.0]]), np.array([1.0, 0.0, 0.0])).tolist() == [2.0]


def test_balance_matches_scipy_entropy_of_the_midpoint() -> None:
    expected = [1 - stats.entropy((row + ESTIMATE) / 2, np.full(6, 1 / 6)) for row in ROWS]
    assert balance(ROWS, ESTIMATE) == pytest.approx(expected, abs=1e-12)
    # (1, 0) and (0, 1) have a uniform midpoint: KL is 0. (1, 0) twice: KL is log 2.
    both = balance(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.0]))
    assert both == pytest.approx([1.0, 1 - math.log(2)])


def test_divergence_matches_scipy_and_stays_finite() -> None:
    expected = [stats.entropy(row, ESTIMATE) for row in ROWS]
    assert divergence(ROWS, ESTIMATE) == pytest.approx(expected, abs=1e-12)
    # log(1 / 1e-12), half of it with half of the mass, less log 2 that the other half saves.
    rows = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    expected = [12 * math.log(10), 6 * math.log(10) - math.log(2), 0.0]
    assert divergence(rows, np.array([1.0, 0.0])) == pytest.approx(expected)


def test_gini_is_chance_that_two_midpoint_draws_differ() -> None:
    # Midpoints (1/2, 1/2) and (1, 0).
    assert gini(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.0])).tolist() == [0.5, 0.0]
    middle = (ROWS[0] + ESTIMATE) / 2
    pairs = sum(middle[a] * middle[b] for a in range(6) for b in range(6) if a != b)
    assert gini(ROWS, ESTIMATE)[0] == pytest.approx(pairs)


def test_cosine_matches_scipy_and_is_1_for_zero_vectors() -> None:
    assert cosine(ROWS, ESTIMATE) == pytest.approx([distance.cosine(row, ESTIMATE) for row in ROWS], abs=1e-12)
    assert cosine(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([3.0, 0.0])).tolist() == [1.0, 0.0]
    assert cosine(np.eye(2), np.zeros(2)).tolist() == [1.0, 1.0]


def test_each_name_selects_its_metric() -> None:
    by_name = {name: tau(FedSeqArranger(tau=name), ROWS, ESTIMATE) for name in ("cosine", "wasserstein", "kl", "gini")}
    assert by_name["cosine"].tolist() == cosine(ROWS, ESTIMATE).tolist()
    assert by_name["wasserstein"].tolist() == wasserstein(ROWS, ESTIMATE).tolist()
    assert by_name["kl"].tolist() == balance(ROWS, ESTIMATE).tolist()
    assert by_name["gini"].tolist() == gini(ROWS, ESTIMATE).tolist()
    assert tau(FedSeqArranger(kl="pairwise"), ROWS, ESTIMATE).tolist() == divergence(ROWS, ESTIMATE).tolist()
    straight = [math.dist(row, ESTIMATE) for row in ROWS]
    assert tau(FedSeqArranger(tau="euclidean"), ROWS, ESTIMATE) == pytest.approx(straight)


def test_rows_are_normalised_to_distributions() -> None:
    assert as_distributions(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist() == [[0.25, 0.75], [0.5, 0.5]]
