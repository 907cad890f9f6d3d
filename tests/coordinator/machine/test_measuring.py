"""Models of rounds are tested while the next round is in progress."""

from __future__ import annotations

import random
from math import isnan, nan
from typing import Any

import msgspec
import pytest

from coordinator import recovery
from coordinator.job_state import JobState
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.kept_models import BEST_ONLY, KeepSettings
from coordinator.records import JobCompiled, JobEnded, RoundClosed, RoundKeeps, RoundMeasured, RoundPlanned
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import CancelWork, Log, StartWork, WorkFailed
from sojourn.protocol.operator_messages import Continue, Inspect, Jobs, Remove, Stop, Submit
from sojourn.protocol.wire import JobView, RoundReport
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import KIT, MODEL, OPERATOR, TEST, Bench, records, text
from tests.sojourn.store.replays import replayed, sends, without_steps


class MeasuredBench(Bench):
    """A coordinator whose rounds close on request, and are measured when the test requests it."""

    def __init__(self, keep: KeepSettings = KeepSettings(), **changes) -> None:  # noqa: B008  # frozen
        super().__init__()
        self.cloud = Coordinator("c", keep=keep)
        self.running(**{"rounds": 3} | changes)

    @property
    def state(self) -> JobState:
        return self.cloud.state.jobs["job"]

    def gather(self) -> CloseRound:
        """Complete all tours of the round; return the work that closes it."""
        for tour in self.state.tours:
            self.toured(tour.number, tour.site, self.state.round)
        return next(work for work in self.work.values() if isinstance(work, CloseRound))

    def close(self, now=0.0, accuracy=0.5) -> list[Any]:
        def closed(work: CloseRound):
            number, found = work.state.round, accuracy if work.measure else nan
            model = {"model": ref_of(b"round %d" % number, "float32")}
            report = RoundReport(number, found, found, 2, 2, 0, 0, 1.0, {})
            return RoundClosed("job", model, model, (), report, keeps=RoundKeeps(evaluation_pending=not work.measure))

        return self.did(CloseRound, closed, now)

    def measure(self, accuracy=0.5) -> list[Any]:
        return self.did(MeasureRound, lambda work: RoundMeasured("job", work.round, accuracy, 1.0))

    def view(self) -> JobView:
        (answer,) = sends(self.receive(OPERATOR, Inspect("i", "job")), Jobs)
        assert isinstance(answer, Jobs)
        (view,) = answer.jobs
        return view


def closed(**changes) -> MeasuredBench:
    """A job whose first round is closed, with its model still to be tested."""
    bench = MeasuredBench(**changes)
    bench.gather()
    bench.close()
    return bench


def asked(effects) -> list[type]:
    return [type(effect.work) for effect in effects if isinstance(effect, StartWork)]


def test_next_round_is_planned_before_evaluation() -> None:
    bench = MeasuredBench()
    assert not bench.gather().measure
    effects = bench.close()
    assert records(effects) == [RoundClosed]
    assert asked(effects) == [PlanRound, MeasureRound]
    assert not any(isinstance(effect, Log) for effect in without_steps(effects))  # logged with the metrics
    assert records(bench.plan()) == [RoundPlanned]
    assert bench.state.evaluation_pending
    effects = bench.measure(0.75)
    assert records(effects) == [RoundMeasured]
    assert ["accuracy 75.00%, loss 1.0000" in effect.text for effect in effects if isinstance(effect, Log)] == [True]
    assert not bench.state.evaluation_pending
    assert [(report.accuracy, report.loss) for report in bench.state.history] == [(0.75, 1.0)]


def test_evaluation_uses_model_of_the_round() -> None:
    (work,) = (work for work in closed().work.values() if isinstance(work, MeasureRound))
    assert (work.job, work.round, work.kit, work.test) == ("job", 1, KIT, TEST)
    assert work.model == ref_of(b"round 1", "float32")


@pytest.mark.parametrize(
    ("changes", "at_once"), [({}, False), ({"rounds": 1}, True), ({"target": 0.9}, True), ({"target": 1.0}, True)]
)
def test_possibly_last_round_is_evaluated_at_once(changes, at_once) -> None:
    assert MeasuredBench(**changes).gather().measure is at_once


def test_job_without_test_set_defers_nothing() -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"))
    bench.receive(OPERATOR, Submit("t", text(rounds=3)))
    held = {"model": MODEL}
    bench.did(PrepareJob, JobCompiled("job", KIT, held, held, None, None))
    bench.plan()
    for tour in bench.cloud.state.jobs["job"].tours:
        bench.toured(tour.number, tour.site)
    (work,) = (work for work in bench.work.values() if isinstance(work, CloseRound))
    assert work.measure


def test_round_becomes_visible_with_its_metrics() -> None:
    bench = closed()
    bench.plan()
    view = bench.view()
    assert (view.round, view.history, isnan(view.accuracy)) == (0, (), True)
    assert view.models
    assert view.models.rounds == ()
    bench.measure(0.75)
    view = bench.view()
    assert (view.round, [report.accuracy for report in view.history], view.accuracy) == (1, [0.75], 0.75)
    assert view.models
    assert (view.models.rounds, view.models.best) == ((1,), 1)


def test_round_waits_for_metrics_of_previous_round() -> None:
    bench = closed()
    bench.plan()
    assert not bench.gather().measure
    assert bench.close() == []
    assert (len(bench.state.history), bench.view().status) == (1, "running")
    effects = bench.measure(0.75)
    assert records(effects) == [RoundMeasured, RoundClosed]
    assert asked(effects) == [PlanRound, MeasureRound]
    assert bench.state.history[0].accuracy == 0.75
    assert bench.state.evaluation_pending
    bench.measure(0.5)
    bench.plan()
    assert bench.gather().measure
    assert records(bench.close(accuracy=0.25)) == [RoundClosed, JobEnded]
    assert [report.accuracy for report in bench.state.history] == [0.75, 0.5, 0.25]
    assert (bench.state.best, bench.work) == (1, {})


def test_failed_evaluation_is_logged_and_job_continues() -> None:
    bench = closed()
    bench.plan()
    bench.gather()
    bench.close()
    del bench.work["measure job"]
    effects = bench.handle(WorkFailed("measure job", "failed", "the graph is gone"))
    assert records(effects) == [RoundMeasured, RoundClosed]
    warnings = [effect.text for effect in effects if isinstance(effect, Log) and effect.level == "warning"]
    assert warnings == ["job job round 1: its model could not be tested: the graph is gone"]
    (first, _) = bench.state.history
    assert isnan(first.accuracy)
    assert first.failures == ("its model could not be tested: the graph is gone",)
    assert bench.handle(WorkFailed("measure unknown", "failed", "?")) == []


def test_restart_requests_the_evaluation_again() -> None:
    bench = closed()
    bench.plan()
    bench.gather()
    bench.close()  # this waited for the metrics, and is forgotten
    bench.cloud, bench.work = bench.replayed(), {}
    assert asked(bench.note(bench.cloud.start(0.0))) == [CloseRound, MeasureRound]
    assert records(bench.measure(0.75)) == [RoundMeasured]
    assert records(bench.close())[0] is RoundClosed  # the next one waits for the sites to come back
    assert [report.accuracy for report in bench.state.history[:1]] == [0.75]


def test_evaluation_after_stop_still_counts() -> None:
    bench = closed()
    bench.plan()
    bench.gather()
    bench.close()
    stopped = bench.receive(OPERATOR, Stop("s", "job"))
    assert not [effect for effect in stopped if isinstance(effect, CancelWork)]  # the round is closed, and had waited
    assert (bench.view().round, bench.view().status) == (1, "stopped")
    assert records(bench.measure(0.75)) == [RoundMeasured]  # and the round that had waited is gone with the job
    assert (bench.view().accuracy, len(bench.state.history)) == (0.75, 1)
    assert asked(bench.replayed().start(0.0)) == []


def test_stopped_job_is_evaluated_after_restart() -> None:
    bench = closed()
    bench.receive(OPERATOR, Stop("s", "job"))
    assert asked(bench.replayed().start(0.0)) == [MeasureRound]


def test_stopped_and_continued_job_keeps_pending_evaluation() -> None:
    bench = closed()
    bench.plan()
    bench.gather()
    bench.close()
    bench.receive(OPERATOR, Stop("s", "job"))
    bench.receive(OPERATOR, Continue("c", "job", 4))
    bench.plan()
    bench.gather()
    assert bench.close() == []  # a new one, that waits again
    assert records(bench.measure(0.75)) == [RoundMeasured, RoundClosed]
    assert [report.round for report in bench.state.history] == [1, 2]


def test_new_target_applies_from_next_round() -> None:
    bench = closed()
    bench.receive(OPERATOR, Continue("c", "job", target=0.7))
    bench.plan()
    bench.measure(0.75)
    assert bench.state.status == "running"
    assert bench.gather().measure
    assert records(bench.close(accuracy=0.8)) == [RoundClosed, JobEnded]


def test_lowered_round_count_ends_job_and_metrics_follow() -> None:
    bench = MeasuredBench()
    assert not bench.gather().measure
    bench.receive(OPERATOR, Continue("c", "job", 1))
    assert records(bench.close()) == [RoundClosed, JobEnded]
    bench.measure(0.75)
    assert (bench.view().status, bench.view().accuracy) == ("done", 0.75)


def test_removed_job_is_no_longer_evaluated() -> None:
    bench = closed()
    bench.receive(OPERATOR, Stop("s", "job"))
    effects = bench.receive(OPERATOR, Remove("r", "job"))
    assert CancelWork("measure job") in effects
    assert bench.handle(WorkFailed("measure job", "failed", "gone")) == []


def test_duplicate_or_foreign_metrics_change_nothing() -> None:
    bench = closed()
    work = bench.work["measure job"]
    bench.measure(0.75)
    bench.work["measure job"] = work
    assert bench.measure(0.1) == []
    bench.plan()
    bench.gather()
    bench.close()
    bench.work["measure job"] = work
    assert bench.measure(0.1) == []
    assert bench.state.evaluation_pending


@pytest.mark.parametrize("seed", range(4))
def test_deferred_evaluation_keeps_the_same_models(seed) -> None:
    draw = random.Random(seed)
    metrics = [draw.choice([0.1, 0.2, 0.3, 0.4]) for _ in range(12)]
    keep = draw.choice([BEST_ONLY, KeepSettings(last=2, every=5)])
    concurrent, at_once = MeasuredBench(keep, rounds=30), MeasuredBench(keep, rounds=30, target=1.0)
    for metric in metrics:
        for bench in (concurrent, at_once):
            bench.gather()
            bench.close(accuracy=metric)
        concurrent.measure(metric)
        assert concurrent.state.kept == at_once.state.kept
        assert concurrent.state.best == at_once.state.best
        for bench in (concurrent, at_once):
            bench.plan()


def test_best_model_is_kept_until_newest_metrics_arrive() -> None:
    bench = closed(keep=BEST_ONLY)
    bench.measure(0.5)
    bench.plan()
    bench.gather()
    bench.close()
    assert set(bench.state.models) == {1, 2}
    bench.measure(0.75)
    assert set(bench.state.models) == {2}


def test_metrics_record_without_its_round_is_invalid() -> None:
    bench = closed()
    state, measured = bench.cloud.state, RoundMeasured("job", 1, 0.5, 1.0, (1,))
    assert recovery.validation_error(state, measured) is None
    assert recovery.validation_error(state, msgspec.structs.replace(measured, round=2)) is not None
    bench.measure()
    assert recovery.validation_error(state, measured) is not None


def test_lost_metrics_record_does_not_block_next_round() -> None:
    bench = closed()
    bench.measure(0.75)
    bench.plan()
    bench.gather()
    bench.close()
    kept = [it for it in bench.records if b"round-measured/1" not in it]
    assert len(kept) == len(bench.records) - 1
    twin = replayed(Coordinator("c"), kept)
    assert [isnan(report.accuracy) for report in twin.state.jobs["job"].history] == [True, True]
    assert twin.state.jobs["job"].evaluation_pending
