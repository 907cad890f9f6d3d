"""Operators' requests to a coordinator, and its answers."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.work import ExportModel, ModelExported
from coordinator.records import JobEnded, JobStarted
from coordinator.rounds.preparing import PrepareJob
from sojourn import __version__
from sojourn.node.machine import Received, TimerFired, WorkFailed
from sojourn.protocol.messages import TourCancel
from sojourn.protocol.operator_messages import Continue, Export, Exported, Inspect, Jobs, Refused, Stop, Submit
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.wire import JobStatus, RoundReport, TourId
from tests.coordinator.machine.cloud_bench import BOOT, MODEL, OPERATOR, Bench, records, text
from tests.sojourn.store.replays import sends


def test_repeated_submission_is_ignored_and_names_are_unique() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    before = bench.changes
    assert [type(m) for m in sends(bench.receive(OPERATOR, Submit("t", text())))] == [Jobs]
    (refused,) = sends(bench.receive(OPERATOR, Submit("other", text())))
    assert refused == Refused("other", "a job 'job' already exists (compiling); use another name")
    for wrong in ("", "name = 3", "name = ", text(round=3), "a = " + "[" * 20_000):
        assert [type(m) for m in sends(bench.receive(OPERATOR, Submit("x", wrong)))] == [Refused]
    assert bench.changes == before


def ended(status: JobStatus) -> Bench:
    """End a job with this status before any visit."""
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.timeout": 60})))
    if status == "refused":
        key = next(key for key, work in bench.work.items() if isinstance(work, PrepareJob))
        bench.work.pop(key)
        bench.handle(WorkFailed(key, "failed", "no such class"))
    elif status == "failed":
        bench.compile()
        bench.plan()
        bench.handle(TimerFired(), 60.0)
    else:
        bench.receive(OPERATOR, Stop("s", "job"))
    assert bench.cloud.state.jobs["job"].status == status
    return bench


@pytest.mark.parametrize("status", ["refused", "failed"])
def test_name_of_refused_or_untrained_job_can_be_reused(status: JobStatus) -> None:
    bench = ended(status)
    (answer,) = sends(bench.receive(OPERATOR, Submit("u", text(rounds=7)), 61.0))
    assert isinstance(answer, Jobs)
    state = bench.cloud.state.jobs["job"]
    assert (state.status, state.ticket, state.settings.rounds) == ("compiling", "u", 7)
    assert sends(bench.receive(OPERATOR, Submit("u", text(rounds=7)), 62.0))[0].jobs[0].job == "job"


def test_stopped_or_trained_job_keeps_its_name() -> None:
    stopped, trained = ended("stopped"), Bench()
    trained.running()
    trained.trained()
    trained.cloud.state.jobs["job"].status = "failed"
    for bench in (stopped, trained):
        (refused,) = sends(bench.cloud.handle(Received(OPERATOR, BOOT, Submit("u", text())), 61.0))
        assert "a job 'job' already exists" in refused.reason


def test_job_with_missing_files_is_refused_at_submission() -> None:
    bench = Bench()
    bench.cloud = Coordinator("c", check_job=lambda job: f"data.test: there is no {job.name}")
    assert sends(bench.receive(OPERATOR, Submit("t", text()))) == [Refused("t", "data.test: there is no job")]
    assert bench.cloud.state.jobs == {}


@pytest.mark.parametrize("kind", [Export, partial(MakeRelease, line="wine", version=1)])
def test_untrained_model_is_not_exported_or_released(kind) -> None:
    bench = ended("failed")
    (refused,) = sends(bench.receive(OPERATOR, kind("e", "job")))
    assert refused.reason.startswith("no device has trained the model of job 'job', which is failed: waited 60 s for")


def test_waiting_job_starts_if_fewer_devices_are_required() -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.devices": 3})))
    bench.compile()
    bench.plan()
    assert bench.cloud.state.jobs["job"].detail.endswith("(sojourn job continue job --devices 1)")
    bench.receive(OPERATOR, Continue("c", "job", devices=1), 1.0)
    bench.plan(1.0)
    assert bench.cloud.state.jobs["job"].status == "running"
    (refused,) = sends(bench.receive(OPERATOR, Continue("d", "job", devices=2), 2.0))
    assert refused.reason == "job 'job' has started: --devices applies only before the first round, so omit it"
    log = [entry.what for entry in bench.cloud.state.audit.entries if entry.what.startswith("continue")]
    assert log == ["continue job devices 1", "continue job devices 2"]


def test_every_request_gets_a_reply() -> None:
    bench = Bench()
    assert sends(bench.receive(OPERATOR, Inspect("t"))) == [Jobs("t", (), __version__)]
    for question in (Inspect("t", "none"), Stop("t", "none"), Export("t", "none")):
        assert sends(bench.receive(OPERATOR, question)) == [Refused("t", "there is no job 'none'; the jobs are: none")]
    bench.receive(OPERATOR, Submit("t", text()))
    assert "it has no model yet" in sends(bench.receive(OPERATOR, Export("t", "job")))[0].reason


def test_replies_fit_in_any_broker_packet() -> None:
    bench = Bench()
    bench.running()
    job = bench.cloud.state.jobs["job"]
    failures = tuple(f"device-{number}: lost, {'x' * 180}" for number in range(20))
    job.history = [RoundReport(n, 0.5, 1.0, 2, 2, 20, 0, 1.0, {}, failures) for n in range(1, 300)]
    tour = job.tours[0]
    job.tours = tuple(msgspec.structs.replace(tour, number=n, hops=("d" * 63,) * 50) for n in range(100))
    job.detail = "y" * 20_000
    (answer,) = sends(bench.cloud.handle(Received(OPERATOR, BOOT, Inspect("t", "job", 5)), 0.0))
    assert len(msgspec.msgpack.encode(answer)) < 60_000
    assert answer.jobs[0].history[0].round == 6
    assert [it.round for it in answer.jobs[0].history] == list(range(6, 6 + len(answer.jobs[0].history)))
    for number in range(300):
        bench.cloud.state.jobs[f"job-{number}"] = job
    (answer,) = sends(bench.cloud.handle(Received(OPERATOR, BOOT, Inspect("t")), 0.0))
    assert len(msgspec.msgpack.encode(answer)) < 60_000


def test_export_is_made_once_for_repeated_requests() -> None:
    bench = Bench()
    bench.running()
    bench.trained()
    assert bench.receive(OPERATOR, Export("e", "job"))
    assert bench.receive(OPERATOR, Export("e", "job")) == []
    effects = bench.did(ExportModel, ModelExported("e", "operator", MODEL, 0.5, 0))
    assert sends(effects) == [Exported("e", MODEL, 0.5, 0)]
    assert sends(bench.receive(OPERATOR, Export("e", "job"))) == [Exported("e", MODEL, 0.5, 0)]
    bench.receive(OPERATOR, Export("f", "job"))
    key = next(key for key, work in bench.work.items() if isinstance(work, ExportModel))
    assert sends(bench.handle(WorkFailed(key, "failed", "broken"))) == [Refused("f", "broken")]
    assert bench.cloud.state.jobs["job"].status == "running"


def test_stop_cancels_tours_and_starts_next_job() -> None:
    bench = Bench()
    bench.running()
    bench.receive(OPERATOR, Submit("t2", text("next")))
    effects = bench.receive(OPERATOR, Stop("s", "job"))
    assert sends(effects, TourCancel) == [TourCancel(TourId("job", 1, 0, 1)), TourCancel(TourId("job", 1, 1, 1))]
    assert records(effects) == [JobEnded, JobStarted]
    assert sends(effects, Jobs)[0].jobs[0].status == "stopped"
    assert records(bench.receive(OPERATOR, Stop("s", "job"))) == []
    assert any(isinstance(work, PrepareJob) for work in bench.work.values())


def test_stopping_queued_job_keeps_running_job() -> None:
    bench = Bench()
    bench.running()
    bench.receive(OPERATOR, Submit("t2", text("next")))
    effects = bench.receive(OPERATOR, Stop("s", "next"))
    assert records(effects) == [JobEnded]
    assert [type(message) for message in sends(effects)] == [Jobs]
