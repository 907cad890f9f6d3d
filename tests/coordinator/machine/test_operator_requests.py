"""What operators ask a coordinator, and what they are told."""

from __future__ import annotations

import msgspec

from coordinator.machine.work import ExportModel, ModelExported
from coordinator.records import JobEnded, JobStarted
from coordinator.rounds.preparing import PrepareJob
from sojourn import __version__
from sojourn.node.machine import DidNot, Received
from sojourn.protocol.messages import Export, Exported, Inspect, Jobs, Refused, Stop, Submit, TourCancel
from sojourn.protocol.wire import RoundReport, TourId
from tests.coordinator.machine.cloud_bench import BOOT, MODEL, OPERATOR, Bench, records, text
from tests.sojourn.store.replays import sends


def test_submitting_twice_changes_nothing_and_names_are_unique() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    before = bench.changes
    assert [type(m) for m in sends(bench.hear(OPERATOR, Submit("t", text())))] == [Jobs]
    (refused,) = sends(bench.hear(OPERATOR, Submit("other", text())))
    assert refused == Refused("other", "there is a job 'job' already (compiling); give this one another name")
    for wrong in ("", "name = 3", "name = ", text(round=3), "a = " + "[" * 20_000):
        assert [type(m) for m in sends(bench.hear(OPERATOR, Submit("x", wrong)))] == [Refused]
    assert bench.changes == before


def test_questions_are_answered() -> None:
    bench = Bench()
    assert sends(bench.hear(OPERATOR, Inspect("t"))) == [Jobs("t", (), __version__)]
    for question in (Inspect("t", "none"), Stop("t", "none"), Export("t", "none")):
        assert sends(bench.hear(OPERATOR, question)) == [Refused("t", "there is no job 'none'; the jobs are: none")]
    bench.hear(OPERATOR, Submit("t", text()))
    assert "it has no model yet" in sends(bench.hear(OPERATOR, Export("t", "job")))[0].reason


def test_answers_fit_in_any_brokers_packet() -> None:
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


def test_an_export_is_made_once_and_told_again() -> None:
    bench = Bench()
    bench.running()
    assert bench.hear(OPERATOR, Export("e", "job"))
    assert bench.hear(OPERATOR, Export("e", "job")) == []
    effects = bench.did(ExportModel, ModelExported("e", "operator", MODEL, 0.5, 0))
    assert sends(effects) == [Exported("e", MODEL, 0.5, 0)]
    assert sends(bench.hear(OPERATOR, Export("e", "job"))) == [Exported("e", MODEL, 0.5, 0)]
    bench.hear(OPERATOR, Export("f", "job"))
    key = next(key for key, work in bench.work.items() if isinstance(work, ExportModel))
    assert sends(bench.tell(DidNot(key, "Fault", "broken"))) == [Refused("f", "broken")]
    assert bench.cloud.state.jobs["job"].status == "running"


def test_stopping_cancels_the_tours_and_begins_the_next_job() -> None:
    bench = Bench()
    bench.running()
    bench.hear(OPERATOR, Submit("t2", text("next")))
    effects = bench.hear(OPERATOR, Stop("s", "job"))
    assert sends(effects, TourCancel) == [TourCancel(TourId("job", 1, 0, 1)), TourCancel(TourId("job", 1, 1, 1))]
    assert records(effects) == [JobEnded, JobStarted]
    assert sends(effects, Jobs)[0].jobs[0].status == "stopped"
    assert records(bench.hear(OPERATOR, Stop("s", "job"))) == []
    assert any(isinstance(work, PrepareJob) for work in bench.work.values())


def test_stopping_a_queued_job_leaves_the_running_one_alone() -> None:
    bench = Bench()
    bench.running()
    bench.hear(OPERATOR, Submit("t2", text("next")))
    effects = bench.hear(OPERATOR, Stop("s", "next"))
    assert records(effects) == [JobEnded]
    assert [type(message) for message in sends(effects)] == [Jobs]
