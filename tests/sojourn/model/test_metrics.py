"""Tallies add over batches, and their metrics equal scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as known

from sojourn.model.metrics import added, metrics, tallied
from sojourn.protocol.metric_names import DIRECTIONS, MAIN, TASK_METRICS, better

DRAW = np.random.default_rng(3)


def halves(kind, outputs, targets, losses, faulty=None):
    """Return the tally of two batches of different sizes."""
    cut = len(losses) // 3
    parts = [
        tallied(
            kind,
            outputs[at],
            None if targets is None else targets[at],
            losses[at],
            None if faulty is None else faulty[at],
        )
        for at in (slice(None, cut), slice(cut, None))
    ]
    return metrics(kind, added(*parts))


def test_every_task_kind_has_a_main_metric_with_direction():
    for kind, names in TASK_METRICS.items():
        assert names[0] == MAIN[kind]
        assert set(names) <= set(DIRECTIONS)


def test_classification_metrics_match_scikit_learn():
    logits, y = DRAW.normal(size=(301, 4)), DRAW.integers(0, 4, 301)
    found = halves("classification", logits, y, np.ones(301))
    assert found["accuracy"] == pytest.approx(known.accuracy_score(y, logits.argmax(1)))
    assert found["macro_f1"] == pytest.approx(known.f1_score(y, logits.argmax(1), average="macro"))
    assert found["loss"] == 1.0
    assert "auc" not in found
    assert next(iter(found)) == "accuracy"


def test_class_never_present_nor_predicted_is_not_counted():
    logits, y = np.eye(5)[[0, 1, 1]], np.array([0, 1, 0])
    f1 = known.f1_score(y, logits.argmax(1), average="macro")
    assert halves("classification", logits, y, np.ones(3))["macro_f1"] == pytest.approx(f1)


def test_binary_auc_is_accurate_to_a_bin():
    logits, y = DRAW.normal(size=(500, 2)), DRAW.integers(0, 2, 500)
    logits[:, 1] += y
    found = halves("classification", logits, y, np.ones(500))["auc"]
    assert found == pytest.approx(known.roc_auc_score(y, logits[:, 1] - logits[:, 0]), abs=2e-3)


def test_multilabel_metrics_are_means_over_labels():
    logits, y = DRAW.normal(size=(400, 3)), DRAW.integers(0, 2, (400, 3)).astype(np.float32)
    logits += y
    found = halves("multilabel", logits, y, np.ones(400))
    assert found["macro_f1"] == pytest.approx(known.f1_score(y, logits > 0, average="macro"))
    assert found["auc"] == pytest.approx(known.roc_auc_score(y, logits, average="macro"), abs=2e-3)
    assert found["accuracy"] == pytest.approx(((logits > 0) == y).mean())


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_regression_metrics_match_scikit_learn(offset):
    y = DRAW.normal(size=(200, 2)) * (1.0, 20.0) + offset
    answers = y + DRAW.normal(size=(200, 2))
    found = halves("regression", answers, y, np.ones(200))
    assert found["rmse"] == pytest.approx(np.sqrt(known.mean_squared_error(y, answers)))
    assert found["mae"] == pytest.approx(known.mean_absolute_error(y, answers))
    assert found["r2"] == pytest.approx(known.r2_score(y, answers), abs=1e-6)


def test_constant_target_has_no_r2():
    answers = np.ones((4, 1))
    assert np.isnan(halves("regression", answers, np.full((4, 1), 3.0), np.ones(4))["r2"])


def test_forecast_error_covers_every_step_of_the_horizon():
    y = DRAW.normal(size=(30, 6, 2))
    found = halves("forecast", np.zeros_like(y), y, np.ones(30))
    assert found["rmse"] == pytest.approx(np.sqrt(np.square(y).mean()))


def test_anomalies_count_for_auc_but_not_for_error():
    scores, faulty = np.array([1e-6, 2e-6, 3e-6, 5e-6, 4e-6, 9e-6]), np.array([0, 0, 0, 0, 1, 1], np.bool_)
    x = np.zeros((6, 4))
    outputs = np.where(faulty[:, None], 100.0, 0.5) + x
    found = halves("reconstruction", outputs, x, scores, faulty)
    assert found["anomaly_auc"] == pytest.approx(known.roc_auc_score(faulty, scores))
    assert found["rmse"] == pytest.approx(0.5)
    assert found["loss"] == pytest.approx(scores[:4].mean())
    assert "anomaly_auc" not in halves("reconstruction", outputs, x, scores)


def test_perplexity_is_exp_of_mean_loss():
    y = DRAW.integers(0, 7, (10, 5))
    found = halves("tokens", np.eye(7)[y], y, np.full(10, np.log(7)))
    assert found["perplexity"] == pytest.approx(7.0)
    assert found["accuracy"] == 1.0


def test_comparison_follows_metric_direction_and_nan():
    assert better("rmse", 1.0, 2.0)
    assert not better("accuracy", 0.1, 0.2)
    assert better("accuracy", 0.1, float("nan"))
    assert not better("rmse", float("nan"), 1.0)
