"""Visits per second, from past views."""

from __future__ import annotations

import pytest

from coordinator.console.job_progress import JobProgress, VisitRate, describe_rate
from sojourn.protocol.wire import JobView


def at(visits: int | None) -> JobProgress:
    return JobProgress(JobView("first", "visit", "mlp", "running", "", 1, 10, "train", 0.5, 2), (), visits=visits)


def test_rate_covers_last_seconds() -> None:
    rate = VisitRate()
    assert rate.per_second(at(0), 0.0) is None
    assert rate.per_second(at(20), 4.0) == pytest.approx(5.0)
    assert rate.per_second(at(60), 8.0) == pytest.approx(7.5)
    assert rate.per_second(at(80), 14.0) == pytest.approx(6.0)  # since second 4
    assert rate.per_second(at(80), 60.0) is None  # none has ended for long


def test_running_job_counts_from_first_view() -> None:
    rate = VisitRate()
    rate.per_second(at(1000), 0.0)
    assert rate.per_second(at(1010), 5.0) == pytest.approx(2.0)


def test_missing_count_gives_no_rate() -> None:
    rate = VisitRate()
    rate.per_second(at(None), 0.0)
    assert rate.per_second(at(None), 5.0) is None


@pytest.mark.parametrize(
    ("rate", "words"),
    [(None, ""), (0.05, "3 visits/min"), (2.345, "2.3 visits/s"), (12.6, "13 visits/s"), (5432.1, "5,432 visits/s")],
)
def test_rate_is_formatted(rate, words) -> None:
    assert describe_rate(rate) == words
