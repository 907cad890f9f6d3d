"""Metrics by name: which direction is better, by how much, and their format."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from sojourn.protocol.metric_names import DIRECTIONS, MAIN, SHARES, TASK_METRICS, called, metric_text, worsening


def test_every_metric_has_a_direction_and_main_ones_come_first() -> None:
    assert {name for names in TASK_METRICS.values() for name in names} == set(DIRECTIONS)
    assert all(TASK_METRICS[kind][0] == main for kind, main in MAIN.items())
    assert set(DIRECTIONS) >= SHARES


@pytest.mark.parametrize(
    ("name", "metric", "before", "lost"),
    [("rmse", 3.0, 2.0, 0.5), ("rmse", 1.0, 2.0, -0.5), ("accuracy", 0.4, 0.5, 0.2), ("r2", -2.0, -1.0, 1.0),
     ("loss", 0.0, 0.0, 0.0), ("loss", 1.0, 0.0, inf), ("accuracy", 1.0, 0.0, -inf)],
)  # fmt: skip
def test_worsening_follows_metric_direction(name: str, metric: float, before: float, lost: float) -> None:
    assert worsening(name, metric, before) == pytest.approx(lost)


def test_worsening_of_unknown_values_is_nan() -> None:
    assert isnan(worsening("rmse", nan, 1.0))
    assert isnan(worsening("rmse", 1.0, nan))
    assert isnan(worsening("unheard", 1.0, 2.0))


def test_only_shares_are_shown_as_percentages() -> None:
    assert metric_text("accuracy", 0.876) == "87.6 %"
    assert metric_text("r2", 0.876) == "0.876"
    assert metric_text("rmse", 12.34567) == "12.35"
    assert metric_text("mae", 123456.7) == "123,457"
    assert metric_text("perplexity", 1.5e12) == "1.500e+12"
    assert metric_text("rmse", nan) == "-"
    assert (called("rmse"), called("anomaly_auc"), called("own")) == ("RMSE", "fault AUC", "own")
