"""A coordinator whose disk is full: its work is retried until there is space, and nothing is lost."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.job_state import JobState
from coordinator.machine import work as work_module
from coordinator.machine.job_work import WORK_AGAIN
from coordinator.machine.work import CoordinatorWorker, ExportModel, ModelExported
from coordinator.records import JobEnded, JobStarted
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from sojourn.errors import DiskFull
from sojourn.node.machine import Log, TimerFired, WorkFailed
from sojourn.protocol.operator_messages import Export, Exported, Inspect, Stop, Submit
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import MODEL, OPERATOR, Bench, records, text
from tests.coordinator.machine.compiling_process import send_frames
from tests.sojourn.store.replays import sends
from tests.there import there

if TYPE_CHECKING:
    from pathlib import Path


FULL = "writing blobs/1: the disk is full; free some space to continue"


def detail_of(bench: Bench) -> tuple[str, str]:
    (answer,) = sends(bench.receive(OPERATOR, Inspect("i", "job")))
    (view,) = answer.jobs
    return view.status, view.detail


def no_room(bench: Bench, form: type, now: float = 0.0) -> list[Any]:
    key = next(key for key, work in bench.work.items() if isinstance(work, form))
    del bench.work[key]
    return bench.handle(WorkFailed(key, "disk", FULL), now)


def test_full_disk_work_is_retried_until_there_is_space() -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    bench.receive(OPERATOR, Submit("t", text(rounds=1)))
    now = 0.0
    for form, go_on, status in (
        (PrepareJob, bench.compile, "compiling"),
        (PlanRound, bench.plan, "waiting"),
        (CloseRound, bench.close, "running"),
    ):
        for turn in range(3):
            effects = no_room(bench, form, now)
            assert [effect.level for effect in effects if isinstance(effect, Log)] == ([] if turn else ["error"])
            assert detail_of(bench) == (status, FULL)
            assert bench.handle(TimerFired(), now + WORK_AGAIN - 0.1) == []
            assert there(bench.cloud.wake_at()) <= now + WORK_AGAIN
            now += WORK_AGAIN
            bench.handle(TimerFired(), now)
        go_on(now)
        assert detail_of(bench)[1] != FULL
        if form is PlanRound:
            for number, name in ((0, "s1"), (1, "s2")):
                bench.toured(number, name, now=now)
    assert detail_of(bench) == ("done", "1 round is done")


def test_job_waiting_for_disk_space_can_be_stopped() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    bench.receive(OPERATOR, Submit("u", text("next")))
    no_room(bench, PrepareJob)
    effects = bench.receive(OPERATOR, Stop("s", "job"), 1.0)
    assert records(effects) == [JobEnded, JobStarted]
    assert detail_of(bench) == ("stopped", "stopped by an operator")
    (work,) = bench.work.values()
    assert work.name == "next"
    bench.handle(TimerFired(), 100.0)
    assert [*bench.work.values()] == [work]


def test_failed_export_is_made_on_the_next_request() -> None:
    bench = Bench()
    bench.running()
    bench.trained()
    bench.receive(OPERATOR, Export("e", "job"))
    (warning,) = no_room(bench, ExportModel)
    assert isinstance(warning, Log)
    bench.receive(OPERATOR, Export("e", "job"))
    bench.did(ExportModel, ModelExported("e", "operator", MODEL, 0.5, 0))
    assert [type(it) for it in sends(bench.receive(OPERATOR, Export("e", "job")))] == [Exported]


def test_compile_process_reports_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator reads the same error that the process wrote."""
    send_frames(tmp_path, monkeypatch, work_module._Failure(FULL, disk_full=True))
    with pytest.raises(DiskFull, match="free some"):
        CoordinatorWorker(MemoryBlobs(), tmp_path)(PrepareJob("job", text()))


def test_worker_reports_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(work_module, "plan_round", full)
    with pytest.raises(DiskFull, match="the disk is full"):
        CoordinatorWorker(MemoryBlobs())(PlanRound(JobState("job", text()), {}))
