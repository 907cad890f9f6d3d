"""Jobs that are continued, removed, or used as a start, and their stored models."""

from __future__ import annotations

import pytest

from coordinator.job_state import JobState
from coordinator.machine import kept_models
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_models import KeepSettings
from coordinator.machine.work import BuildRelease, ExportModel
from coordinator.records import (
    JobContinued,
    JobEnded,
    JobRemoved,
    JobStarted,
    RoundClosed,
    RoundKeeps,
    RoundsKept,
    Unmerged,
)
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from coordinator.rounds.starting import StartModel
from sojourn.node.machine import Received, Send
from sojourn.protocol.operator_messages import (
    Continue,
    Export,
    Inspect,
    Jobs,
    JobText,
    ReadJob,
    Refused,
    Remove,
    Removed,
    Stop,
    Submit,
)
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.wire import Ref, RoundReport
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import BOOT, KIT, MODEL, OPERATOR, Bench, records, text
from tests.sojourn.store.replays import replayed, sends
from tests.there import there


class LongBench(Bench):
    """A coordinator whose rounds pass one after another, each with its own model; 100 s a round."""

    def __init__(self, **keep) -> None:
        super().__init__()
        self.cloud = Coordinator("c", wall=1e9, keep=KeepSettings(**keep))
        self.now = 0.0

    def replayed(self, cut=0) -> Coordinator:
        return replayed(Coordinator("c"), self.records, cut)

    def handle(self, event, now=0.0):
        return super().handle(event, self.now)

    def rounds(self, accuracies, *, of: bytes = b"model") -> None:
        for accuracy in accuracies:
            state = there(self.cloud._queue.current)
            self.now += 100.0
            for tour in state.tours:
                self.toured(tour.number, tour.site, state.round)
            self.closed(accuracy, ref_of(of * 1000 + bytes([state.round])))
            if any(isinstance(work, PlanRound) for work in self.work.values()):
                self.plan()

    def closed(self, accuracy, model, **more):
        def outcome(work: CloseRound):
            report = RoundReport(work.state.round, accuracy, 1.0, 2, 2, 0, 0, 1.0, {}, (), work.at)
            return RoundClosed(work.state.name, {"model": model}, {"model": model}, (), report, **more)

        return self.did(CloseRound, outcome)

    def ask(self, message):
        (answer,) = sends(self.receive(OPERATOR, message))
        return answer

    def view(self, name="job"):
        (view,) = self.ask(Inspect("i", name)).jobs
        return view


def kept_of(state: JobState) -> dict[int, Ref]:
    assert isinstance(state.kept, dict)
    return state.kept


def test_finished_job_continues_where_it_stopped() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    bench.rounds([0.5, 0.6])
    assert bench.view().status == "done"
    effects = bench.receive(OPERATOR, Continue("c", "job", 3))
    assert records(effects) == [JobContinued, JobStarted]
    assert sends(effects)[-1].jobs[0].rounds == 3
    assert not any(isinstance(work, PrepareJob) for work in bench.work.values())  # nothing is compiled again
    bench.plan()
    bench.rounds([0.7])
    view = bench.view()
    assert (view.status, view.round, view.detail) == ("done", 3, "3 rounds are done")
    assert [report.round for report in view.history] == [1, 2, 3]


def test_repeated_request_changes_nothing() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    bench.rounds([0.5])
    bench.receive(OPERATOR, Continue("c", "job", 2))
    assert records(bench.receive(OPERATOR, Continue("c", "job", 2))) == []
    bench.plan()
    bench.rounds([0.5])
    assert records(bench.receive(OPERATOR, Continue("c", "job", 2))) == []  # it came late, and the job is over again
    assert isinstance(bench.ask(Continue("d", "job", 2)), Refused)


@pytest.mark.parametrize(
    ("changes", "question", "reason"),
    [
        ({}, {}, "has completed 2 of 2 rounds: set the total with --rounds"),
        ({}, {"rounds": 1}, "more than 2"),
        ({}, {"rounds": 2, "target": 0.9}, "more than 2"),
        ({"target": 0.6}, {"rounds": 5}, "has reached its target accuracy 60.00%: set a higher one with --target"),
    ],
)
def test_request_that_leaves_nothing_to_do_is_refused(changes, question, reason) -> None:
    bench = LongBench()
    bench.running(rounds=2, **changes)
    bench.rounds([0.5, 0.6])
    before = bench.changes
    assert reason in bench.ask(Continue("c", "job", **question)).reason
    assert bench.changes == before


def test_target_is_raised_or_removed() -> None:
    for target, ends in ((0.8, 0.8), (0.0, None)):
        bench = LongBench()
        bench.running(rounds=5, target=0.6)
        bench.rounds([0.6])
        assert bench.view().status == "done"
        bench.receive(OPERATOR, Continue("c", "job", target=target))
        assert bench.cloud.state.jobs["job"].settings.target == ends
        assert bench.view().status == "waiting"


def test_continued_job_is_queued_last() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    bench.rounds([0.5])
    bench.receive(OPERATOR, Submit("t2", text("second", rounds=1)))
    effects = bench.receive(OPERATOR, Continue("c", "job", 2))
    assert records(effects) == [JobContinued]
    assert [view.job for view in bench.ask(Inspect("i")).jobs] == ["second", "job"]
    assert bench.view().status == "queued"
    assert records(bench.receive(OPERATOR, Stop("s", "second"))) == [JobEnded, JobStarted]
    assert bench.view().status == "waiting"


def test_job_stopped_before_compiling_is_compiled_on_continue() -> None:
    bench = LongBench()
    bench.receive(OPERATOR, Submit("t", text()))
    bench.receive(OPERATOR, Stop("s", "job"))
    bench.receive(OPERATOR, Continue("c", "job"))
    assert any(isinstance(work, PrepareJob) for work in bench.work.values())


def test_running_job_gets_more_rounds_without_a_pause() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    tours = bench.cloud.state.jobs["job"].tours
    assert records(bench.receive(OPERATOR, Continue("c", "job", 2))) == [JobContinued]
    assert bench.cloud.state.jobs["job"].tours == tours
    bench.rounds([0.5])
    assert (bench.view().status, bench.view().rounds) == ("running", 2)


def test_extended_closing_round_keeps_unmerged_slots() -> None:
    merged, apart = ref_of(b"merged"), ref_of(b"apart")
    unmerged = Unmerged({"model": apart}, {"model": apart}, {"slot-0": 5.0}, 3, 2)
    for early in (True, False):
        bench = LongBench()
        bench.running(rounds=1)
        for tour in bench.cloud.state.jobs["job"].tours:
            bench.toured(tour.number, tour.site)
        if early:
            bench.receive(OPERATOR, Continue("c", "job", 2))
        bench.closed(0.5, merged, keeps=RoundKeeps(unmerged=unmerged))
        state = bench.cloud.state.jobs["job"]
        if not early:
            assert (state.vectors["model"], state.since_merge) == (merged, 0)
            assert apart.digest in state.live()
            bench.receive(OPERATOR, Continue("c", "job", 2))
        assert (state.vectors["model"], state.slots, state.since_merge, state.merged_fleet) == (
            apart,
            {"slot-0": 5.0},
            3,
            2,
        )
        assert state.models[1] == kept_of(state)[1] == merged  # what was measured after round 1


def test_last_every_third_and_best_models_are_kept() -> None:
    bench = LongBench(last=2, every=3)
    bench.running(rounds=9)
    bench.rounds([0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6])
    models = bench.view().models
    assert (models.rounds, models.best) == ((2, 3, 6, 7), 2)
    state = bench.cloud.state.jobs["job"]
    assert {ref.digest for ref in kept_of(state).values()} <= bench.cloud.live()
    assert bench.ask(Export("e", "job", 4)) == Refused(
        "e", "the model of round 4 of job 'job' is not stored; stored: 2, 3, 6, 7"
    )
    assert bench.ask(Export("f", "job", 8)) == Refused("f", "job 'job' has completed 7 rounds: there is no round 8 yet")
    bench.receive(OPERATOR, Export("g", "job", 2))
    bench.receive(OPERATOR, MakeRelease("h", "job", "line", 1, round=3))
    work = {type(work): work for work in bench.work.values()}
    assert (work[ExportModel].round, work[BuildRelease].round) == (2, 3)
    assert work[ExportModel].state.models[2] == kept_of(state)[2]


def test_number_of_kept_rounds_is_limited(monkeypatch) -> None:
    monkeypatch.setattr(kept_models, "MAX_MODELS", 3)
    bench = LongBench(last=100)
    bench.running(rounds=9)
    bench.rounds([0.9, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert bench.view().models.rounds == (1, 4, 5, 6)


def test_kept_models_of_all_jobs_share_a_size_limit() -> None:
    """Four models of 300 kB exceed a megabyte: the oldest is dropped first, never the best or the newest."""
    bench = LongBench(last=10, megabytes=1)
    bench.running(rounds=4)
    bench.rounds([0.9, 0.5, 0.4], of=bytes(300))
    assert bench.view().models.rounds == (1, 2, 3)
    bench.rounds([0.3], of=bytes(300))
    assert bench.view().models.rounds == (1, 3, 4)
    assert records(bench.note(bench.cloud._finished._drop_old_models())) == []
    bench.cloud._finished._keep = KeepSettings(megabytes=0)
    assert records(bench.note(bench.cloud._finished._drop_old_models())) == [RoundsKept]
    assert bench.view().models.rounds == (1, 4)


def test_finished_job_is_removed_with_its_own_blobs() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    assert "is running: stop it first" in bench.ask(Remove("r", "job")).reason
    bench.rounds([0.5, 0.6])
    alone = bench.cloud.state.jobs["job"].live()
    bench.receive(OPERATOR, Submit("t2", text("second", rounds=1)))
    bench.compile()  # with the same kit and first model
    effects = bench.receive(OPERATOR, Remove("r2", "job"))
    assert records(effects) == [JobRemoved]
    (removed,) = sends(effects)
    assert removed == Removed("r2", "job", 2, 2 * 5001)
    assert sends(bench.receive(OPERATOR, Remove("r2", "job"))) == [removed]  # a repeated request
    assert "job" not in bench.cloud.state.jobs
    assert alone & bench.cloud.live() == {KIT.digest, MODEL.digest} | (alone & bench.cloud.state.jobs["second"].live())


def test_reused_name_of_removed_job_starts_a_new_job() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    bench.rounds([0.5])
    numbered = bench.cloud.state.jobs["job"].next_tour
    bench.receive(OPERATOR, Remove("r", "job"))
    bench.receive(OPERATOR, Submit("t2", text(rounds=1)))
    bench.compile()
    bench.plan()
    assert bench.view().status == "running"
    assert all(tour.number >= numbered for tour in bench.cloud.state.jobs["job"].tours)


def test_name_of_removed_job_with_device_state_is_not_reused() -> None:
    bench = LongBench()
    bench.receive(OPERATOR, Submit("t", dyn := text(**{"objective.name": "dyn", "aggregator.name": "dyn"})))
    bench.receive(OPERATOR, Stop("s", "job"))
    bench.receive(OPERATOR, Remove("r", "job"))
    assert "devices may still remember the removed job 'job'" in bench.ask(Submit("t2", dyn)).reason
    assert isinstance(bench.receive(OPERATOR, Submit("t3", text()))[1], Send)
    assert bench.cloud.state.jobs["job"].ticket == "t3"


def test_job_starts_from_model_of_another_job() -> None:
    bench = LongBench()
    later = text("later", **{"model.start": "job:job@2"})
    assert "there is no job 'job'; the jobs are: none" in bench.ask(Submit("t", later)).reason
    bench.running(rounds=2)
    bench.receive(OPERATOR, Submit("t1", later))  # of a job that is not over: unknown so far
    assert bench.view("later").status == "queued"
    bench.rounds([0.5, 0.6])
    work = next(work for work in bench.work.values() if isinstance(work, PrepareJob))
    models = bench.cloud.state.jobs["job"].models
    assert work.start == StartModel("round 2 of job 'job'", KIT, models[2])
    assert "'later' is queued and starts from the model" not in bench.ask(Remove("r", "second")).reason
    assert "job 'later' is queued and starts from the model of 'job'" in bench.ask(Remove("r", "job")).reason
    third = text("third", **{"model.start": "job:job@3"})
    assert (
        "model.start: job 'job' has completed 2 rounds: there is no round 3 yet"
        in bench.ask(Submit("t3", third)).reason
    )


def test_missing_start_model_refuses_the_queued_job() -> None:
    bench = LongBench()
    bench.running(rounds=3)
    bench.rounds([0.5])
    bench.receive(OPERATOR, Submit("t1", text("later", **{"model.start": "job:job@3"})))
    bench.receive(OPERATOR, Stop("s", "job"))
    assert bench.view("later").status == "refused"
    assert "has completed 1 round: there is no round 3 yet" in bench.view("later").detail


def test_untrained_job_cannot_be_a_start() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    bench.receive(OPERATOR, Submit("t1", text("later", **{"model.start": "job:job"})))
    bench.receive(OPERATOR, Stop("s", "job"))
    assert bench.view("later").status == "refused"
    assert bench.view("later").detail == "model.start: no device has trained the model of job 'job', which is stopped"


def test_job_times_are_wall_clock_times() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    bench.rounds([0.5])
    times = bench.view().times
    assert (times.submitted, times.ended, times.took) == (1e9, None, 100.0)
    bench.rounds([0.6])
    times = bench.view().times
    assert (times.submitted, times.ended, times.took) == (1e9, 1e9 + 200.0, 200.0)
    assert [report.ended for report in bench.view().history] == [1e9 + 100.0, 1e9 + 200.0]
    bench.now += 1000.0  # a pause does not count
    bench.receive(OPERATOR, Continue("c", "job", 3))
    bench.plan()
    bench.rounds([0.7])
    assert bench.view().times.took == 300.0


def test_job_file_is_returned() -> None:
    bench = LongBench()
    bench.receive(OPERATOR, Submit("t", text()))
    assert bench.ask(ReadJob("r", "job")) == JobText("r", "job", text())
    assert isinstance(bench.ask(ReadJob("r", "none")), Refused)


def test_round_model_missing_from_disk_is_dropped() -> None:
    bench = LongBench(last=9)
    bench.running(rounds=3)
    bench.rounds([0.1, 0.2, 0.3])
    state = bench.cloud.state.jobs["job"]
    gone = kept_of(state)[2].digest
    assert bench.cloud.drop_missing_blobs({gone}) == ["the model of round 2 of job 'job' is missing"]
    assert sorted(kept_of(state)) == sorted(state.models) == [1, 3]
    lost = bench.cloud.drop_missing_blobs({state.vectors["model"].digest})
    assert "is missing from the disk" in lost[-1]
    (refused,) = sends(bench.cloud.handle(Received(OPERATOR, BOOT, Continue("c", "job", 9)), 0.0))
    assert "cannot continue, files are missing from the disk" in refused.reason


def test_replies_include_the_version() -> None:
    bench = LongBench()
    answer = bench.ask(Inspect("i"))
    assert isinstance(answer, Jobs)
    assert answer.version is not None
