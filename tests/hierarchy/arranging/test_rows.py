"""The rows made of devices' reports."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import PCA

from hierarchy.arranging.rows import principal, rows
from sojourn.errors import Fault
from sojourn.model.metrics import softmax
from sojourn.parts import ClassCountEstimator, ClassifierEstimator, ConfidenceEstimator, SignatureEstimator

RAW = np.random.default_rng(1).random((12, 6)) * [9, 5, 3, 1, 0.3, 0.1]


def test_confidence_is_normalised_by_sum_or_softmax() -> None:
    raw = np.array([[0.2, 0.6], [0.0, 0.0]])
    assert rows(ConfidenceEstimator(), raw) == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5]]))
    # exp(0.6) / exp(0.2) is exp(0.4) to 1: at most e, which is why it is flat.
    flat = 1 / (1 + np.exp(0.4))
    soft = rows(ConfidenceEstimator(normalise="softmax"), raw)
    assert soft == pytest.approx(np.array([[flat, 1 - flat], [0.5, 0.5]]))
    assert softmax(np.array([[1000.0, 1000.0]])).tolist() == [[0.5, 0.5]]


def test_signatures_and_counts_are_unchanged() -> None:
    assert rows(SignatureEstimator(), RAW) is RAW
    assert rows(ClassCountEstimator(), RAW) is RAW


@pytest.mark.parametrize("variance", [0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("shape", [(12, 6), (6, 12), (2, 5)])
def test_classifier_rows_match_scikit_learn_pca_up_to_signs(variance: float, shape: tuple[int, int]) -> None:
    raw = np.resize(RAW, shape) + np.random.default_rng(2).random(shape)
    found = rows(ClassifierEstimator(variance=variance), raw)
    full = PCA().fit(raw)
    kept = next(n for n in range(1, 99) if full.explained_variance_ratio_[:n].sum() >= variance - 1e-12)
    assert found.shape == (shape[0], kept)
    assert np.abs(found) == pytest.approx(np.abs(PCA(kept).fit_transform(raw)))


def test_component_signs_are_deterministic() -> None:
    # Along (3, -4) / 5 the largest loading is that of the second column, so it counts as positive.
    raw = np.array([[3.0, -4.0], [-3.0, 4.0]])
    assert principal(raw, 0.9) == pytest.approx(np.array([[-5.0], [5.0]]))
    assert principal(raw[::-1], 0.9) == pytest.approx(np.array([[5.0], [-5.0]]))


def test_more_variance_keeps_more_components() -> None:
    assert [principal(RAW, share).shape[1] for share in (0.1, 0.9, 1.0)] == [1, 2, 6]


def test_rows_without_variance_are_zeros() -> None:
    assert principal(np.array([[1.0, 2.0, 3.0]]), 0.9).tolist() == [[0.0]]
    assert principal(np.full((3, 2), 0.1), 0.9).tolist() == [[0.0]] * 3
    assert principal(np.empty((0, 4)), 0.9).shape == (0, 1)


def test_non_finite_rows_raise_a_fault() -> None:
    with pytest.raises(Fault, match="not finite"):
        principal(np.array([[1.0, np.nan], [0.0, 1.0]]), 0.9)
