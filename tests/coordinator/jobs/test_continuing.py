"""Tests of job files with more rounds, and of the start that they name."""

from __future__ import annotations

import pytest

from coordinator.jobs.settings import JobStart, continued, read_job, read_start
from sojourn.errors import ConfigError, JobError
from tests.fleet_sim.small_fleet import job


def test_only_rounds_and_target_change() -> None:
    before = job(strategy="fedavg", rounds=4, training__lr=0.3, target=0.9)
    after = read_job(continued(before, 8, None), "after")
    assert (after.all_rounds, after.target) == (8, 0.9)
    assert read_job(continued(before, None, 0.0), "after").target is None
    assert read_job(continued(before, None, 0.5), "after").target == 0.5
    assert read_job(continued(continued(before, 8, 0.5), 4, 0.9), "after") == read_job(before, "before")


def test_ring_gets_more_trips_and_one_shot_no_more_rounds() -> None:
    ring = job(strategy="fedelmy-few-shot", rounds=None)
    assert read_job(continued(ring, 7, None), "ring").all_rounds == 7
    both = job(strategy="fedelmy-few-shot", schedule__trips=3, rounds=3)
    assert read_job(continued(both, 7, None), "ring").all_rounds == 7
    once = job(strategy="fedelmy-parallel", rounds=None)
    with pytest.raises(JobError, match=r"has 1 round and cannot have more: .* model.start = \"job:job\""):
        continued(once, 2, None)


def test_ring_given_by_name_gets_more_trips() -> None:
    text = 'name = "job"\nstrategy = "fedelmy-few-shot"\nschedule = "ring"\ndata.test = "digits"'
    assert read_job(continued(text, 7, None), "ring").all_rounds == 7


def test_start_names_job_and_round() -> None:
    assert read_start("job:a", "x") == JobStart("a")
    assert read_start("job:a-1@12", "x") == JobStart("a-1", 12)
    assert read_start("job:a@best", "x") == JobStart("a", "best")


@pytest.mark.parametrize("text", ["a", "job:", "job:A", "job:a@", "job:a@0", "job:a@-1", "job:a@1.5", "job:a@²", "x:a"])
def test_invalid_start_is_rejected(text) -> None:
    with pytest.raises(ConfigError, match=r"model\.start"):
        read_job(job(model__start=text), "x")


def test_job_does_not_start_from_itself() -> None:
    with pytest.raises(ConfigError, match="continue it"):
        read_job(job(model__start="job:job"), "x")
