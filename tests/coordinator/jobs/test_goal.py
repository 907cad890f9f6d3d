"""Tests of goals: the metric, its direction, and invalid targets."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest

from coordinator.jobs.goal import best_round, goal_of
from sojourn.errors import ConfigError
from sojourn.protocol.wire import RoundReport


def report(number: int, accuracy: float = nan, **metrics: float) -> RoundReport:
    return RoundReport(number, accuracy, 0.5, 1, 1, 0, 0, 1.0, {}, metrics=metrics)


def test_plain_number_refers_to_main_metric() -> None:
    assert goal_of(0.9, "classification", "job") == ("accuracy", 0.9)
    assert goal_of(250, "regression", "job") == ("rmse", 250)
    assert str(goal_of(0.9, "classification", "job")) == "accuracy 90.00%"
    assert goal_of("rmse<=0.125", "forecast", "job").text == "rmse <= 0.125"


def test_reaching_a_goal_depends_on_direction() -> None:
    lower, higher = goal_of("rmse <= 2", "regression", "job"), goal_of("r2 >= 0.5", "regression", "job")
    assert lower.reached(report(1, rmse=2.0, r2=0.4))
    assert not lower.reached(report(1, rmse=2.1))
    assert higher.reached(report(1, r2=0.5))
    assert not higher.reached(report(1, r2=nan))
    assert not higher.reached(report(1))


@pytest.mark.parametrize(
    ("target", "kind", "reason"),
    [
        ("rmse >= 2", "regression", "lower is better"),
        ("accuracy >= 0.9", "regression", 'write one of "rmse <= ..."'),
        ("rmse", "regression", "write one of"),
        ("rmse <= 1e", "regression", "is not a number"),
        ("auc >= 90", "multilabel", "above 0 and at most 1"),
        (1.5, "classification", "above 0 and at most 1"),
        (float("nan"), "regression", "a number"),
    ],
)
def test_invalid_goal_reports_reason(target: Any, kind: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        goal_of(target, kind, "job")


def test_best_round_depends_on_direction() -> None:
    history = [report(1, 0.5, rmse=3.0), report(2, 0.7, rmse=2.0), report(3, 0.6, rmse=2.0), report(4)]
    assert best_round(history, "regression") == 2
    assert best_round(history) == 2
    assert best_round(history[3:], "regression") is None
