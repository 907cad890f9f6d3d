"""A job's mandate covers all tasks of its strategy, otherwise devices would decline them."""

from __future__ import annotations

import pytest

from coordinator.job_state import JobState
from coordinator.jobs.settings import read_job
from coordinator.records import TourPlan
from coordinator.rounds.orders import all_tasks, task_of
from coordinator.strategies import STRATEGIES
from sojourn.parts import NoEstimator
from sojourn.protocol.wire import RoundReport
from tests.fleet_sim.small_fleet import job


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_mandate_covers_every_task_of_a_strategy(strategy: str) -> None:
    text = job(strategy=strategy, rounds=None)
    signed = all_tasks(read_job(text, "job"))
    tour = TourPlan(0, "site", ("a",))
    report = RoundReport(1, 0.5, 1.0, 1, 1, 0, 0, 1.0, {})
    for phase in ("train", "estimate"):
        for history in ([], [report]):
            state = JobState("job", text, phase=phase, tours=(tour,), history=list(history))
            task = task_of(state, tour)
            assert task in signed or isinstance(task.estimator, NoEstimator)  # a task without an estimator is not sent
    assert len(signed) <= 4  # of metafed, one for each of its phases
