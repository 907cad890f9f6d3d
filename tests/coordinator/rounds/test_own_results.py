"""What devices say of their own models: counted once, in range, and told with how many said it."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import msgspec
import pytest

from coordinator.records import RoundMeasured
from coordinator.rounds.own_results import own_results
from coordinator.state import with_figures
from sojourn.protocol.wire import RoundReport, VisitReport


def told(device: str, hop: int = 0, **metrics: float) -> VisitReport:
    return VisitReport(device, hop, "done", "", 10, 1.0, metrics, None, 1.0)


def test_means_are_over_devices_with_their_spread_and_number() -> None:
    found = own_results(
        [told("a", own_accuracy=0.5, own_loss=1.0), told("b", own_accuracy=1.0, own_loss=3.0, own_validation=0.25)],
        "classification",
    )
    assert found == {
        "own_accuracy": 0.75, "own_accuracy_spread": 0.25, "own_devices": 2.0, "own_loss": 2.0, "own_validation": 0.25,
    }  # fmt: skip


def test_a_device_counts_once_with_its_newest_visit() -> None:
    found = own_results([told("a", 0, own_accuracy=0.1), told("a", 1, own_accuracy=0.9)], "classification")
    assert (found["own_accuracy"], found["own_devices"]) == (0.9, 1.0)


@pytest.mark.parametrize("wrong", [1.01, -0.01, 1e30])
def test_a_share_out_of_range_is_left_out(wrong: float) -> None:
    one = told("a", own_accuracy=wrong, merged_accuracy=wrong, own_validation=wrong)
    found = own_results([one, told("b", own_accuracy=0.5, merged_accuracy=0.5)], "classification")
    assert (found["own_accuracy"], found["own_devices"], found["merged_accuracy"]) == (0.5, 1.0, 0.5)
    assert "own_validation" not in found
    assert own_results([one], "classification") == {}


def test_of_a_quantity_the_main_figure_is_another() -> None:
    found = own_results([told("a", own_rmse=12.5), told("b", own_rmse=7.5)], "regression")
    assert found == {"own_rmse": 10.0, "own_rmse_spread": 2.5, "own_devices": 2.0}


@pytest.mark.parametrize(("before", "test", "after"), [
    (msgspec.UNSET, msgspec.UNSET, msgspec.UNSET),
    (msgspec.UNSET, {"auc": 0.5}, {"auc": 0.5}),
    ({"own_accuracy": 0.5}, msgspec.UNSET, {"own_accuracy": 0.5}),
    ({"own_accuracy": 0.5}, {"auc": 0.25}, {"own_accuracy": 0.5, "auc": 0.25}),
])  # fmt: skip
def test_a_test_of_the_jobs_model_leaves_what_devices_said(before: Any, test: Any, after: Any) -> None:
    report = RoundReport(1, nan, nan, 1, 1, 0, 0, 1.0, {}, figures=before)
    found = with_figures(report, RoundMeasured("job", 1, 0.5, 1.0, figures=test))
    assert (found.figures, found.accuracy) == (after, 0.5)


def test_no_message_holds_a_figure_without_end() -> None:
    raw = msgspec.msgpack.encode(told("a", own_loss=inf))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(raw, type=VisitReport)
