"""Tests of a coordinator's jobs as runs: what its records report, and what a restart reports again."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.tracking.runs import RoundTracked, RunBegun, RunEnded
from coordinator.tracking.tracker import RECENT, LiveJobs
from sojourn.node.machine import Append
from sojourn.protocol.operator_messages import Continue, Remove, Submit
from tests.coordinator.machine.cloud_bench import OPERATOR, text
from tests.coordinator.machine.test_measuring import MeasuredBench


class TrackedBench(MeasuredBench):
    """A coordinator with tracked jobs: like its node, it reports record by record after the machine's turn."""

    def __init__(self, **changes) -> None:
        self.frames: list[Any] = []
        self.jobs = self.tracking()
        super().__init__(**changes)

    def tracking(self) -> LiveJobs:
        return LiveJobs("home", "c", "/store", self.frames.append, lambda: RECENT / 2)

    def note(self, effects):
        for effect in super().note(effects):
            if isinstance(effect, Append):
                self.jobs.wrote(effect.record, self.cloud.state)
        return effects

    def restart(self) -> None:
        """Restart the coordinator and its tracking."""
        self.jobs = self.tracking()
        self.jobs.start(self.cloud.state)

    def round(self, accuracy=0.5) -> None:
        last = self.gather().measure
        self.close(accuracy=accuracy)
        if not last:
            self.plan()
            self.measure(accuracy)


def steps(frames) -> list[int]:
    return [it.step for it in frames if isinstance(it, RoundTracked)]


@pytest.fixture
def bench() -> TrackedBench:
    return TrackedBench()


def test_run_starts_once_with_ordered_rounds_and_ends(bench) -> None:
    for accuracy in (0.25, 0.5, 0.75):
        bench.round(accuracy)
    first, *between, last = bench.frames
    assert isinstance(first, RunBegun)
    assert first.name == "job"
    assert first.params["rounds"] == "3"
    assert {"kind": "live", "fleet": "home", "coordinator": "c", "folder": "/store"}.items() <= first.tags.items()
    assert steps(between) == [1, 2, 3]
    assert [it.metrics["accuracy"] for it in between] == [0.25, 0.5, 0.75]
    assert isinstance(last, RunEnded)
    assert last.outcome == "done"
    assert {it.id for it in bench.frames} == {first.id}


def test_round_is_tracked_after_its_evaluation(bench) -> None:
    bench.gather()
    bench.close()
    assert steps(bench.frames) == []
    bench.plan()
    bench.measure(0.75)
    assert steps(bench.frames) == [1]


def test_restart_sends_same_frames_with_same_id(bench) -> None:
    bench.round()
    before = list(bench.frames)
    bench.frames.clear()
    bench.restart()
    assert bench.frames == before
    bench.round()
    bench.round()
    assert steps(bench.frames) == [1, 2, 3]
    bench.frames.clear()
    bench.restart()  # it has just ended: whether all was written is unknown
    assert [type(it) for it in bench.frames] == [RunBegun, RoundTracked, RoundTracked, RoundTracked, RunEnded]
    bench.frames.clear()
    bench.jobs = LiveJobs("home", "c", "/store", bench.frames.append, lambda: 2 * RECENT)
    bench.jobs.start(bench.cloud.state)
    assert bench.frames == []


def test_continued_job_stays_the_same_run(bench) -> None:
    for _ in range(3):
        bench.round()
    run = bench.frames[0].id
    bench.frames.clear()
    bench.receive(OPERATOR, Continue("more", "job", 4, 0.0))
    bench.plan()
    bench.round()
    assert [type(it) for it in bench.frames] == [RunBegun, RoundTracked, RunEnded]
    assert bench.frames[0].tags["rounds"] == "4"
    assert steps(bench.frames) == [4]
    assert {it.id for it in bench.frames} == {run}


def test_new_job_of_same_name_is_another_run(bench) -> None:
    for _ in range(3):
        bench.round()
    bench.receive(OPERATOR, Remove("gone", "job"))
    first = {it.id for it in bench.frames}
    bench.frames.clear()
    bench.receive(OPERATOR, Submit("another", text(rounds=1)))
    assert bench.frames[0].id not in first
