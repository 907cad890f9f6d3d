"""Metrics of devices' personal models: counted once, in range, and reported with the number of devices."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest

from coordinator.job_state import with_metrics
from coordinator.records import RoundMeasured
from coordinator.rounds.evaluation import own_results
from sojourn.protocol.wire import RoundReport, VisitReport


def report_of(device: str, hop: int = 0, **metrics: float) -> VisitReport:
    return VisitReport(device, hop, "done", "", 10, 1.0, metrics, None, 1.0)


def test_means_are_over_devices_with_spread_and_count() -> None:
    found = own_results(
        [
            report_of("a", own_accuracy=0.5, own_loss=1.0),
            report_of("b", own_accuracy=1.0, own_loss=3.0, own_validation=0.25),
        ],
        "classification",
    )
    assert found == {
        "own_accuracy": 0.75, "own_accuracy_spread": 0.25, "own_devices": 2.0, "own_loss": 2.0, "own_validation": 0.25,
    }  # fmt: skip


def test_device_counts_once_with_its_newest_visit() -> None:
    found = own_results([report_of("a", 0, own_accuracy=0.1), report_of("a", 1, own_accuracy=0.9)], "classification")
    assert (found["own_accuracy"], found["own_devices"]) == (0.9, 1.0)


@pytest.mark.parametrize("wrong", [1.01, -0.01, 1e30])
def test_share_out_of_range_is_left_out(wrong: float) -> None:
    one = report_of("a", own_accuracy=wrong, merged_accuracy=wrong, own_validation=wrong)
    found = own_results([one, report_of("b", own_accuracy=0.5, merged_accuracy=0.5)], "classification")
    assert (found["own_accuracy"], found["own_devices"], found["merged_accuracy"]) == (0.5, 1.0, 0.5)
    assert "own_validation" not in found
    assert own_results([one], "classification") == {}


def test_regression_uses_its_main_metric() -> None:
    found = own_results([report_of("a", own_rmse=12.5), report_of("b", own_rmse=7.5)], "regression")
    assert found == {"own_rmse": 10.0, "own_rmse_spread": 2.5, "own_devices": 2.0}


@pytest.mark.parametrize(("before", "test", "after"), [
    ({}, {}, {}),
    ({}, {"auc": 0.5}, {"auc": 0.5}),
    ({"own_accuracy": 0.5}, {}, {"own_accuracy": 0.5}),
    ({"own_accuracy": 0.5}, {"auc": 0.25}, {"own_accuracy": 0.5, "auc": 0.25}),
])  # fmt: skip
def test_evaluation_keeps_metrics_reported_by_devices(before: Any, test: Any, after: Any) -> None:
    report = RoundReport(1, nan, nan, 1, 1, 0, 0, 1.0, {}, metrics=before)
    found = with_metrics(report, RoundMeasured("job", 1, 0.5, 1.0, metrics=test))
    assert (found.metrics, found.accuracy) == (after, 0.5)


def test_infinite_metric_is_rejected_in_messages() -> None:
    raw = msgspec.msgpack.encode(report_of("a", own_loss=inf))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=VisitReport)
