"""Jobs that are continued, removed, started from, and whose models of rounds are kept."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.machine import kept_rounds
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_rounds import KeepSettings
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
from coordinator.state import JobState
from sojourn.node.machine import Received, Send
from sojourn.protocol.job_messages import Continue, JobText, ReadJob, Remove, Removed
from sojourn.protocol.messages import Export, Inspect, Jobs, Refused, Stop, Submit
from sojourn.protocol.release_messages import MakeRelease
from sojourn.protocol.wire import Ref, RoundReport
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import BOOT, KIT, MODEL, OPERATOR, Bench, records, text
from tests.sojourn.store.replays import replayed, sends
from tests.there import there


class LongBench(Bench):
    """A coordinator whose rounds pass one after another, each with a model of its own; 100 s a round."""

    def __init__(self, **keep) -> None:
        super().__init__()
        self.cloud = Coordinator("c", wall=1e9, keep=KeepSettings(**keep))
        self.now = 0.0

    def replayed(self, cut=0) -> Coordinator:
        return replayed(Coordinator("c"), self.records, cut)

    def tell(self, event, now=0.0):
        return super().tell(event, self.now)

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
        (answer,) = sends(self.hear(OPERATOR, message))
        return answer

    def view(self, name="job"):
        (view,) = self.ask(Inspect("i", name)).jobs
        return view


def kept_of(state: JobState) -> dict[int, Ref]:
    assert isinstance(state.kept, dict)
    return state.kept


def test_a_job_that_is_over_goes_on_where_it_was() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    bench.rounds([0.5, 0.6])
    assert bench.view().status == "done"
    effects = bench.hear(OPERATOR, Continue("c", "job", 3))
    assert records(effects) == [JobContinued, JobStarted]
    assert sends(effects)[-1].jobs[0].rounds == 3
    assert not any(isinstance(work, PrepareJob) for work in bench.work.values())  # nothing is compiled again
    bench.plan()
    bench.rounds([0.7])
    view = bench.view()
    assert (view.status, view.round, view.detail) == ("done", 3, "3 rounds are done")
    assert [report.round for report in view.history] == [1, 2, 3]


def test_the_same_request_again_changes_nothing() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    bench.rounds([0.5])
    bench.hear(OPERATOR, Continue("c", "job", 2))
    assert records(bench.hear(OPERATOR, Continue("c", "job", 2))) == []
    bench.plan()
    bench.rounds([0.5])
    assert records(bench.hear(OPERATOR, Continue("c", "job", 2))) == []  # it came late, and the job is over again
    assert isinstance(bench.ask(Continue("d", "job", 2)), Refused)


@pytest.mark.parametrize(
    ("changes", "question", "reason"),
    [
        ({}, {}, "has done 2 rounds of 2: say with --rounds"),
        ({}, {"rounds": 1}, "more than 2"),
        ({}, {"rounds": 2, "target": 0.9}, "more than 2"),
        ({"target": 0.6}, {"rounds": 5}, "has reached its target accuracy 60.00%: give it a higher one with --target"),
    ],
)
def test_what_leaves_nothing_to_do_is_refused(changes, question, reason) -> None:
    bench = LongBench()
    bench.running(rounds=2, **changes)
    bench.rounds([0.5, 0.6])
    before = bench.changes
    assert reason in bench.ask(Continue("c", "job", **question)).reason
    assert bench.changes == before


def test_a_target_is_raised_or_taken_away() -> None:
    for target, ends in ((0.8, 0.8), (0.0, None)):
        bench = LongBench()
        bench.running(rounds=5, target=0.6)
        bench.rounds([0.6])
        assert bench.view().status == "done"
        bench.hear(OPERATOR, Continue("c", "job", target=target))
        assert bench.cloud.state.jobs["job"].settings.target == ends
        assert bench.view().status == "waiting"


def test_a_continued_job_waits_behind_the_others() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    bench.rounds([0.5])
    bench.hear(OPERATOR, Submit("t2", text("second", rounds=1)))
    effects = bench.hear(OPERATOR, Continue("c", "job", 2))
    assert records(effects) == [JobContinued]
    assert [view.job for view in bench.ask(Inspect("i")).jobs] == ["second", "job"]
    assert bench.view().status == "queued"
    assert records(bench.hear(OPERATOR, Stop("s", "second"))) == [JobEnded, JobStarted]
    assert bench.view().status == "waiting"


def test_a_job_that_was_stopped_before_it_was_compiled_is_compiled() -> None:
    bench = LongBench()
    bench.hear(OPERATOR, Submit("t", text()))
    bench.hear(OPERATOR, Stop("s", "job"))
    bench.hear(OPERATOR, Continue("c", "job"))
    assert any(isinstance(work, PrepareJob) for work in bench.work.values())


def test_a_running_job_gets_more_rounds_without_a_pause() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    tours = bench.cloud.state.jobs["job"].tours
    assert records(bench.hear(OPERATOR, Continue("c", "job", 2))) == [JobContinued]
    assert bench.cloud.state.jobs["job"].tours == tours
    bench.rounds([0.5])
    assert (bench.view().status, bench.view().rounds) == ("running", 2)


def test_more_rounds_while_the_last_one_closes_go_on_from_what_is_not_merged() -> None:
    merged, apart = ref_of(b"merged"), ref_of(b"apart")
    unmerged = Unmerged({"model": apart}, {"model": apart}, {"slot-0": 5.0}, 3, 2)
    for early in (True, False):
        bench = LongBench()
        bench.running(rounds=1)
        for tour in bench.cloud.state.jobs["job"].tours:
            bench.toured(tour.number, tour.site)
        if early:
            bench.hear(OPERATOR, Continue("c", "job", 2))
        bench.closed(0.5, merged, keeps=RoundKeeps(unmerged=unmerged))
        state = bench.cloud.state.jobs["job"]
        if not early:
            assert (state.vectors["model"], state.since_merge) == (merged, 0)
            assert apart.digest in state.live()
            bench.hear(OPERATOR, Continue("c", "job", 2))
        assert (state.vectors["model"], state.slots, state.since_merge, state.merged_fleet) == (
            apart,
            {"slot-0": 5.0},
            3,
            2,
        )
        assert state.models[1] == kept_of(state)[1] == merged  # what was measured after round 1


def test_the_last_models_every_third_and_the_best_are_kept() -> None:
    bench = LongBench(last=2, every=3)
    bench.running(rounds=9)
    bench.rounds([0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.6])
    models = bench.view().models
    assert (models.rounds, models.best) == ((2, 3, 6, 7), 2)
    state = bench.cloud.state.jobs["job"]
    assert {ref.digest for ref in kept_of(state).values()} <= bench.cloud.live()
    assert bench.ask(Export("e", "job", 4)) == Refused("e", "round 4 of job 'job' is not kept; kept are 2, 3, 6, 7")
    assert bench.ask(Export("f", "job", 8)) == Refused("f", "job 'job' has done 7 rounds: there is no round 8 yet")
    bench.hear(OPERATOR, Export("g", "job", 2))
    bench.hear(OPERATOR, MakeRelease("h", "job", "line", 1, round=3))
    work = {type(work): work for work in bench.work.values()}
    assert (work[ExportModel].round, work[BuildRelease].round) == (2, 3)
    assert work[ExportModel].state.models[2] == kept_of(state)[2]


def test_a_record_names_only_so_many_rounds(monkeypatch) -> None:
    monkeypatch.setattr(kept_rounds, "MOST", 3)
    bench = LongBench(last=100)
    bench.running(rounds=9)
    bench.rounds([0.9, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert bench.view().models.rounds == (1, 4, 5, 6)


def test_models_take_no_more_room_than_they_may_over_all_jobs() -> None:
    """Four models of 300 kB are more than a megabyte: the oldest goes first, and never the best or the newest."""
    bench = LongBench(last=10, megabytes=1)
    bench.running(rounds=4)
    bench.rounds([0.9, 0.5, 0.4], of=bytes(300))
    assert bench.view().models.rounds == (1, 2, 3)
    bench.rounds([0.3], of=bytes(300))
    assert bench.view().models.rounds == (1, 3, 4)
    assert records(bench.note(bench.cloud._queue._make_room())) == []
    bench.cloud._queue._keep = KeepSettings(megabytes=0)
    assert records(bench.note(bench.cloud._queue._make_room())) == [RoundsKept]
    assert bench.view().models.rounds == (1, 4)


def test_a_job_that_is_over_is_removed_with_what_it_alone_has() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    assert "is running: stop it first" in bench.ask(Remove("r", "job")).reason
    bench.rounds([0.5, 0.6])
    alone = bench.cloud.state.jobs["job"].live()
    bench.hear(OPERATOR, Submit("t2", text("second", rounds=1)))
    bench.compile()  # with the same kit and first model
    effects = bench.hear(OPERATOR, Remove("r2", "job"))
    assert records(effects) == [JobRemoved]
    (removed,) = sends(effects)
    assert removed == Removed("r2", "job", 2, 2 * 5001)
    assert sends(bench.hear(OPERATOR, Remove("r2", "job"))) == [removed]  # asked again
    assert "job" not in bench.cloud.state.jobs
    assert alone & bench.cloud.live() == {KIT.digest, MODEL.digest} | (alone & bench.cloud.state.jobs["second"].live())


def test_another_job_of_a_removed_ones_name_is_another_job() -> None:
    bench = LongBench()
    bench.running(rounds=1)
    bench.rounds([0.5])
    numbered = bench.cloud.state.jobs["job"].next_tour
    bench.hear(OPERATOR, Remove("r", "job"))
    bench.hear(OPERATOR, Submit("t2", text(rounds=1)))
    bench.compile()
    bench.plan()
    assert bench.view().status == "running"
    assert all(tour.number >= numbered for tour in bench.cloud.state.jobs["job"].tours)


def test_devices_may_remember_a_removed_job_so_its_name_is_not_used_again() -> None:
    bench = LongBench()
    bench.hear(OPERATOR, Submit("t", dyn := text(**{"objective.name": "dyn", "aggregator.name": "dyn"})))
    bench.hear(OPERATOR, Stop("s", "job"))
    bench.hear(OPERATOR, Remove("r", "job"))
    assert "devices may still remember the job 'job'" in bench.ask(Submit("t2", dyn)).reason
    assert isinstance(bench.hear(OPERATOR, Submit("t3", text()))[1], Send)
    assert bench.cloud.state.jobs["job"].ticket == "t3"


def test_a_job_starts_from_the_model_of_another() -> None:
    bench = LongBench()
    later = text("later", **{"model.start": "job:job@2"})
    assert "there is no job 'job'; the jobs are: none" in bench.ask(Submit("t", later)).reason
    bench.running(rounds=2)
    bench.hear(OPERATOR, Submit("t1", later))  # of a job that is not over: nobody knows yet
    assert bench.view("later").status == "queued"
    bench.rounds([0.5, 0.6])
    work = next(work for work in bench.work.values() if isinstance(work, PrepareJob))
    models = bench.cloud.state.jobs["job"].models
    assert work.start == StartModel("round 2 of job 'job'", KIT, models[2])
    assert "'later' is queued and starts from the model" not in bench.ask(Remove("r", "second")).reason
    assert "job 'later' is queued and starts from the model of 'job'" in bench.ask(Remove("r", "job")).reason
    third = text("third", **{"model.start": "job:job@3"})
    assert "model.start: job 'job' has done 2 rounds: there is no round 3 yet" in bench.ask(Submit("t3", third)).reason


def test_a_start_that_is_gone_when_its_turn_comes_refuses_the_job() -> None:
    bench = LongBench()
    bench.running(rounds=3)
    bench.rounds([0.5])
    bench.hear(OPERATOR, Submit("t1", text("later", **{"model.start": "job:job@3"})))
    bench.hear(OPERATOR, Stop("s", "job"))
    assert bench.view("later").status == "refused"
    assert "has done 1 rounds: there is no round 3 yet" in bench.view("later").detail


def test_a_job_that_no_device_trained_is_no_start() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    bench.hear(OPERATOR, Submit("t1", text("later", **{"model.start": "job:job"})))
    bench.hear(OPERATOR, Stop("s", "job"))
    assert bench.view("later").status == "refused"
    assert bench.view("later").detail == "model.start: no device has trained the model of job 'job', which is stopped"


def test_dates_are_told_as_a_clock_on_the_wall_shows_them() -> None:
    bench = LongBench()
    bench.running(rounds=2)
    bench.rounds([0.5])
    times = bench.view().times
    assert (times.submitted, times.ended, times.took) == (1e9, None, 100.0)
    bench.rounds([0.6])
    times = bench.view().times
    assert (times.submitted, times.ended, times.took) == (1e9, 1e9 + 200.0, 200.0)
    assert [report.ended for report in bench.view().history] == [1e9 + 100.0, 1e9 + 200.0]
    bench.now += 1000.0  # a pause is not time that it took
    bench.hear(OPERATOR, Continue("c", "job", 3))
    bench.plan()
    bench.rounds([0.7])
    assert bench.view().times.took == 300.0


def test_a_jobs_file_is_told() -> None:
    bench = LongBench()
    bench.hear(OPERATOR, Submit("t", text()))
    assert bench.ask(ReadJob("r", "job")) == JobText("r", "job", text())
    assert isinstance(bench.ask(ReadJob("r", "none")), Refused)


def test_a_model_of_a_round_that_is_gone_from_the_disk_is_kept_no_more() -> None:
    bench = LongBench(last=9)
    bench.running(rounds=3)
    bench.rounds([0.1, 0.2, 0.3])
    state = bench.cloud.state.jobs["job"]
    gone = kept_of(state)[2].digest
    assert bench.cloud.do_without({gone}) == ["the model of round 2 of job 'job' is gone"]
    assert sorted(kept_of(state)) == sorted(state.models) == [1, 3]
    lost = bench.cloud.do_without({state.vectors["model"].digest})
    assert "is gone from the disk" in lost[-1]
    (refused,) = sends(bench.cloud.handle(Received(OPERATOR, BOOT, Continue("c", "job", 9)), 0.0))
    assert "cannot go on, something of it is gone from the disk" in refused.reason


def test_answers_name_the_version() -> None:
    bench = LongBench()
    answer = bench.ask(Inspect("i"))
    assert isinstance(answer, Jobs)
    assert answer.version is not msgspec.UNSET
