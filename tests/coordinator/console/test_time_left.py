"""Estimates of the time left, from past rounds."""

from __future__ import annotations

import pytest

from coordinator.console.job_progress import JobProgress, TimeLeft, describe_time_left, rounds_done
from sojourn.protocol.wire import JobStatus, JobView, TourView


def at(rounds: int, *, phase: str = "train", hop: int = 0, status: JobStatus = "running") -> JobProgress:
    tour = TourView(0, "site", ("a", "b"), hop, "a", 0, 0, 0, False)
    return JobProgress(JobView("first", "visit", "mlp", status, "", rounds, 10, phase, 0.5, 2, (tour,)), ())


def test_time_left_uses_pace_of_seen_rounds() -> None:
    time_left = TimeLeft()
    assert time_left.seconds(at(0, phase="estimate"), 0.0) is None
    assert time_left.seconds(at(0), 100.0) is None
    assert time_left.seconds(at(2), 110.0) == pytest.approx(40.0)
    assert time_left.seconds(at(2, hop=1), 115.0) == pytest.approx(15 / 2.5 * 7.5)


def test_rounds_before_first_view_do_not_count_for_pace() -> None:
    time_left = TimeLeft()
    assert time_left.seconds(at(8), 0.0) is None
    assert time_left.seconds(at(9), 20.0) == pytest.approx(20.0)


def test_finished_job_has_no_time_left() -> None:
    assert TimeLeft().seconds(at(3, status="done"), 0.0) is None


def test_progress_counts_hops_of_current_round() -> None:
    assert rounds_done(at(3, hop=1)) == 3.5


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (4.4, "4 s left"), (61.0, "1 min 01 s left"), (3725.0, "1 h 02 min left"), (59.7, "1 min 00 s left")],
)
def test_time_left_is_formatted(seconds, words) -> None:
    assert describe_time_left(seconds) == words
