"""Quality of an arrangement: values computed by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierarchy.arranging import measures
from hierarchy.arranging.measures import balance, covered, cpd, inter_cs, intra_cs, quality, vts

# Row 0 has class 0, row 1 class 1, row 2 both.
THREE = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
HALF_RIGHT = 1 / math.sqrt(2)


def test_quality_of_balanced_similar_sets() -> None:
    measured = quality(THREE, [[0, 1], [2]])
    assert measured == pytest.approx({"vts": 1.0, "intra_cs": 0.0, "inter_cs": 1.0}, abs=1e-15)


def test_quality_of_unbalanced_dissimilar_sets() -> None:
    # v^C: (1, 1/2) and (0, 1).
    measured = quality(THREE, [[0, 2], [1]])
    assert measured["vts"] == pytest.approx((1.5 / math.sqrt(2.5) + HALF_RIGHT) / 2, abs=1e-15)
    assert measured["intra_cs"] == pytest.approx(HALF_RIGHT, abs=1e-15)
    assert measured["inter_cs"] == pytest.approx(0.5 / math.sqrt(1.25), abs=1e-15)


def test_intra_is_a_mean_over_pairs_then_over_sets() -> None:
    signatures = np.vstack([THREE, [2.0, 2.0]])
    three_pairs = 2 * HALF_RIGHT / 3
    assert intra_cs(signatures, [[0, 1, 2]]) == pytest.approx(three_pairs, abs=1e-15)
    assert intra_cs(signatures, [[0, 1, 2], [2, 3]]) == pytest.approx((three_pairs + 1) / 2, abs=1e-15)


def test_sets_of_one_have_no_intra() -> None:
    assert math.isnan(intra_cs(THREE, [[0], [1], [2]]))
    assert intra_cs(THREE, [[0, 2], [1]]) == intra_cs(THREE, [[0, 2]])


def test_zero_signature_has_zero_similarity() -> None:
    signatures = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert vts(signatures, [[0], [1]]) == pytest.approx(0.5, abs=1e-15)
    assert inter_cs(signatures, [[0], [1]]) == 0.0
    assert intra_cs(signatures, [[0, 1]]) == 0.0


def test_undefined_measures_are_nan() -> None:
    assert math.isnan(inter_cs(THREE, [[0, 1, 2]]))
    assert all(math.isnan(value) for value in quality(THREE, []).values())
    with_an_empty_set = quality(THREE, [[0, 2], []])
    assert math.isnan(with_an_empty_set["vts"])
    assert math.isnan(with_an_empty_set["inter_cs"])


def test_measures_ignore_length_of_single_signatures() -> None:
    longer = THREE * np.array([[3.0], [5.0], [7.0]])
    alone = [[0], [1], [2]]
    assert quality(longer, alone) == pytest.approx(quality(THREE, alone), nan_ok=True)


def cosine(left: list[float], right: list[float]) -> float:
    lengths = math.hypot(*left) * math.hypot(*right)
    return math.fsum(a * b for a, b in zip(left, right, strict=True)) / lengths if lengths else 0.0


@given(st.integers(2, 8), st.integers(1, 6), st.integers(0, 2**32))
def test_pairwise_measures_match_a_plain_loop(devices: int, classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    signatures = draw.random((devices, classes)) * (draw.random((devices, 1)) > 0.2)
    rows = signatures.tolist()
    pairs = [cosine(rows[i], rows[j]) for i, j in combinations(range(devices), 2)]
    assert intra_cs(signatures, [range(devices)]) == pytest.approx(math.fsum(pairs) / len(pairs), abs=1e-12)
    alone = [[device] for device in range(devices)]
    assert inter_cs(signatures, alone) == pytest.approx(math.fsum(pairs) / len(pairs), abs=1e-12)
    target = [cosine(row, [1.0] * classes) for row in rows]
    assert vts(signatures, alone) == pytest.approx(math.fsum(target) / devices, abs=1e-12)


# Samples of three classes at four devices.
COUNTS = np.array([[4.0, 0.0, 0.0], [0.0, 2.0, 2.0], [1.0, 1.0, 1.0], [3.0, 0.0, 0.0]])


def test_count_measures_match_hand_computation() -> None:
    # Sets have (4, 2, 2) and (4, 1, 1): balance 1/2 and 1/4; shares (1/2, 1/4, 1/4) and (2/3, 1/6, 1/6).
    measured = quality(COUNTS, [[0, 1], [2, 3]], counts=True)
    assert measured["balance"] == pytest.approx(3 / 8, abs=1e-15)
    assert measured["covered"] == 3.0
    assert measured["cpd"] == pytest.approx((1 - math.exp(-1)) * (1 / 36 + 2 / 144), abs=1e-15)
    # (4, 0, 0) and (1, 1, 1) and (3, 2, 2).
    measured = quality(COUNTS, [[0], [2], [1, 3]], counts=True)
    assert measured["balance"] == pytest.approx((0 + 1 + 2 / 3) / 3, abs=1e-15)
    assert measured["covered"] == pytest.approx(7 / 3)


def test_cpd_is_a_median_over_pairs() -> None:
    # |P - Q|^2 of (1, 0), (0, 1) and (1/2, 1/2): 2, 1/2, 1/2.
    rows = np.array([[5.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    assert cpd(rows, [[0], [1], [2]]) == pytest.approx((1 - math.exp(-1)) / 2, abs=1e-15)
    assert cpd(rows * np.array([[7.0], [1.0], [2.0]]), [[0], [1], [2]]) == cpd(rows, [[0], [1], [2]])


def test_available_measures_depend_on_the_rows() -> None:
    sets = [[0, 1], [2, 3]]
    assert list(quality(COUNTS, sets)) == ["vts", "intra_cs", "inter_cs"]
    assert list(quality(COUNTS, sets, by_class=False)) == ["intra_cs", "inter_cs"]
    assert list(quality(COUNTS, sets, counts=True)) == ["vts", "intra_cs", "inter_cs", "balance", "covered", "cpd"]


def test_balance_and_cpd_are_nan_without_samples() -> None:
    counts = np.array([[0.0, 0.0], [2.0, 1.0]])
    assert math.isnan(balance(counts, [[0], [1]]))
    assert math.isnan(cpd(counts, [[0], [1]]))
    assert covered(counts, [[0], [1]]) == 1.0
    assert math.isnan(cpd(counts, [[1]]))
    for measure in (balance, covered, cpd):
        assert math.isnan(measure(counts, [[1], []]))
        assert math.isnan(measure(counts, []))


def test_cpd_samples_pairs_of_large_arrangements(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = np.random.default_rng(1).integers(0, 20, (1200, 5)).astype(float) + np.eye(5)[0]
    alone = [[device] for device in range(1000)]
    every = cpd(counts, alone)
    monkeypatch.setattr(measures, "MAX_PAIRS", 50_000)
    some = cpd(counts, alone)
    assert some == cpd(counts, alone) != every
    assert some == pytest.approx(every, rel=0.03)
    left, right = measures._pairs(1000)
    assert len(left) == 50_000
    assert not np.any(left == right)
