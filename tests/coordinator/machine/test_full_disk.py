"""A coordinator whose disk is full: what it does for a job is tried again until there is room, and nothing is lost."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.machine import work as work_module
from coordinator.machine.job_queue import WORK_AGAIN
from coordinator.machine.work import CoordinatorWorker, ExportModel, ModelExported
from coordinator.records import JobEnded, JobStarted
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from coordinator.state import JobState
from sojourn.errors import DiskFull
from sojourn.node.machine import DidNot, Say, Woke
from sojourn.protocol.messages import Export, Exported, Inspect, Stop, Submit
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import MODEL, OPERATOR, Bench, records, text
from tests.coordinator.machine.compiling_process import says
from tests.sojourn.store.replays import sends
from tests.there import there

if TYPE_CHECKING:
    from pathlib import Path


FULL = "writing blobs/1: no space is left on the disk; free some and it goes on"


def detail_of(bench: Bench) -> tuple[str, str]:
    (answer,) = sends(bench.hear(OPERATOR, Inspect("i", "job")))
    (view,) = answer.jobs
    return view.status, view.detail


def no_room(bench: Bench, form: type, now: float = 0.0) -> list[Any]:
    key = next(key for key, work in bench.work.items() if isinstance(work, form))
    del bench.work[key]
    return bench.tell(DidNot(key, "DiskFull", FULL), now)


def test_work_on_a_full_disk_is_tried_again_until_there_is_room() -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    bench.hear(OPERATOR, Submit("t", text(rounds=1)))
    now = 0.0
    for form, go_on, status in (
        (PrepareJob, bench.compile, "compiling"),
        (PlanRound, bench.plan, "waiting"),
        (CloseRound, bench.close, "running"),
    ):
        for turn in range(3):
            effects = no_room(bench, form, now)
            assert [effect.level for effect in effects if isinstance(effect, Say)] == ([] if turn else ["error"])
            assert detail_of(bench) == (status, FULL)
            assert bench.tell(Woke(), now + WORK_AGAIN - 0.1) == []
            assert there(bench.cloud.wake_at()) <= now + WORK_AGAIN
            now += WORK_AGAIN
            bench.tell(Woke(), now)
        go_on(now)
        assert detail_of(bench)[1] != FULL
        if form is PlanRound:
            for number, name in ((0, "s1"), (1, "s2")):
                bench.toured(number, name, now=now)
    assert detail_of(bench) == ("done", "1 rounds are done")


def test_a_job_that_waits_for_room_can_be_stopped_and_the_next_one_begins() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    bench.hear(OPERATOR, Submit("u", text("next")))
    no_room(bench, PrepareJob)
    effects = bench.hear(OPERATOR, Stop("s", "job"), 1.0)
    assert records(effects) == [JobEnded, JobStarted]
    assert detail_of(bench) == ("stopped", "stopped by an operator")
    (work,) = bench.work.values()
    assert work.name == "next"
    bench.tell(Woke(), 100.0)
    assert [*bench.work.values()] == [work]


def test_an_export_on_a_full_disk_is_made_when_it_is_asked_for_again() -> None:
    bench = Bench()
    bench.running()
    bench.trained()
    bench.hear(OPERATOR, Export("e", "job"))
    (said,) = no_room(bench, ExportModel)
    assert isinstance(said, Say)
    bench.hear(OPERATOR, Export("e", "job"))
    bench.did(ExportModel, ModelExported("e", "operator", MODEL, 0.5, 0))
    assert [type(it) for it in sends(bench.hear(OPERATOR, Export("e", "job")))] == [Exported]


def test_the_process_that_compiles_says_that_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes to its coordinator is read as the error that it was."""
    says(tmp_path, monkeypatch, work_module._Failure(FULL, disk_full=True))
    with pytest.raises(DiskFull, match="free some"):
        CoordinatorWorker(MemoryBlobs(), tmp_path)(PrepareJob("job", text()))


def test_whatever_finds_no_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(work_module, "plan_round", full)
    with pytest.raises(DiskFull, match="no space is left"):
        CoordinatorWorker(MemoryBlobs())(PlanRound(JobState("job", text()), {}))
