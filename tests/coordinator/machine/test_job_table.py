"""The life of a job is its table: every row is reached, and nothing that may be sent leads out of it."""

from __future__ import annotations

import random
from math import nan

import pytest

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.job_queue import WORK_AGAIN
from coordinator.machine.job_table import JOB, STATUS, WORK, step_of
from coordinator.machine.sites import ReadRoster, RosterRead
from coordinator.machine.work import ExportModel, ModelExported
from coordinator.records import (
    ENDED,
    DevicesEstimated,
    JobCompiled,
    JobEnded,
    JobWaits,
    LegPassed,
    RoundClosed,
    RoundFailed,
    RoundKeeps,
    RoundMeasured,
    TourPlan,
)
from coordinator.rounds.closing import PassLeg
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.planning import NotYet, PlanRound, plan_round
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from coordinator.state import JobState
from sojourn.errors import Fault, UnexpectedEvent
from sojourn.node.machine import Did, DidNot, Do, Present, Pulled, PullFailed, Undo, Woke
from sojourn.protocol.job_messages import Continue, Remove
from sojourn.protocol.messages import (
    Export,
    Inspect,
    Roster,
    Stop,
    Submit,
    TourDiscarded,
    Toured,
    TourProgress,
)
from sojourn.protocol.wire import Epoch, Member, RoundReport, TourId
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import (
    BORN,
    DEAD,
    EXEMPLARS,
    KIT,
    MODEL,
    OFFER,
    OPERATOR,
    REPORTS,
    TEST,
    Bench,
    records,
    result,
    site,
    text,
)
from tests.sojourn.node.table_rows import rows_taken
from tests.sojourn.store.replays import replayed, sends

KINDS = (
    {"rounds": 2, "tours.on_lost_site": "reassign"},
    {"rounds": 1, "tours.on_lost_site": "drop", "fleet.timeout": 70.0},
    {"rounds": 2, "tours.on_lost_site": "wait", "estimator.name": "sizes"},
    {"rounds": 2, "tours.on_lost_site": "drop", "schedule.name": "ring", "schedule.trips": 2, "fleet.timeout": 70.0},
)
HELD = {"model": MODEL}


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """The rows of the table that are taken during a test."""
    return rows_taken(monkeypatch, JOB)


class Anything(Bench):
    """A coordinator to which anything happens that peers, operators, work and time can do, in any order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.now = 0.0

    def tell(self, event, now=0.0):
        return self.note(self.cloud.handle(event, self.now))

    def note(self, effects):
        for effect in effects:
            match effect:
                case Do():
                    assert effect.key not in self.work or effect.key.startswith("roster")
                case Undo():
                    assert effect.key in self.work
        return super().note(effects)

    def replayed(self, cut=0) -> Coordinator:
        return self.cloud  # a twin is compared after each step in other tests

    def happen(self) -> None:
        kinds = [self.worked] * 9 + [self.came_home] * 7 + [self.asked, self.sites, self.roster, self.waited] * 2
        self.draw.choice([*kinds, self.failed, self.no_room, self.stopped, self.restarted])()

    def asked(self) -> None:
        name = f"job-{self.draw.randrange(8)}"
        kind = self.draw.choice(KINDS)
        submit = Submit(f"t {name}", text(name, **kind))
        others = [
            Stop(f"s{self.draw.random()}", name),
            Inspect("i", name),
            Export("e", name),
            Remove(f"r{self.draw.random()}"[:20], name),
        ]
        go_on = Continue(f"c{self.draw.random()}"[:20], name, self.draw.randint(1, 4))
        self.hear(OPERATOR, self.draw.choice([submit, submit, go_on, go_on, *others]))

    def stopped(self) -> None:
        state = self.cloud._queue.current
        if state and self.draw.random() < 0.3:
            self.hear(OPERATOR, Stop(f"s{self.draw.random()}", state.name))

    def worked(self) -> None:
        if self.work:
            key = self.draw.choice(list(self.work))
            self.tell(Did(key, self.outcome(self.work.pop(key))))

    def failed(self) -> None:
        if self.work and self.draw.random() < 0.5:
            key = self.draw.choice([key for key in self.work if "roster" not in key] or ["nothing"])
            self.work.pop(key, None)
            self.tell(DidNot(key, "JobError", "in vain"))

    def no_room(self) -> None:
        """The disk is full for a moment, in which nothing else happens, or something does."""
        keys = [key for key in self.work if "roster" not in key]
        if keys:
            self.work.pop(key := self.draw.choice(keys))
            self.tell(DidNot(key, "DiskFull", "no room"))
            if self.draw.random() < 0.9:
                self.now += WORK_AGAIN
                self.tell(Woke())

    def outcome(self, work):
        match work:
            case PrepareJob():
                return JobCompiled(work.name, KIT, HELD, HELD, EXEMPLARS, TEST)
            case PlanRound():
                return NotYet("not now") if self.draw.random() < 0.3 else plan_round(work, MemoryBlobs())
            case ReadRoster():
                there = tuple(Member(f"{work.site}-{n}", work.epoch, OFFER) for n in range(self.draw.randint(1, 2)))
                return RosterRead(work.site, work.epoch, work.revision, there)
            case PassLeg():
                return LegPassed(work.state.name, work.state.leg + 1, {"relay": MODEL}, {"relay": MODEL})
            case CloseRound() if work.state.phase == "estimate":
                asked = {tour.hops[0]: 10 for tour in work.state.tours}
                return DevicesEstimated(work.state.name, {}, (), (), 0, asked)
            case CloseRound() if self.draw.random() < 0.2:
                return RoundFailed(work.state.name, "no device could train")
            case CloseRound():
                found = 0.5 if work.measure else nan
                report = RoundReport(work.state.round, found, found, 2, 2, 0, 0, 1.0, {})
                return RoundClosed(
                    work.state.name, HELD, HELD, (), report, keeps=RoundKeeps(unmeasured=not work.measure)
                )
            case MeasureRound():
                return RoundMeasured(work.job, work.round, 0.5, 1.0)
            case ExportModel():
                return ModelExported(work.ticket, work.operator, MODEL, 0.5, 0)
            case _:
                raise AssertionError(work)

    def came_home(self) -> None:
        state = self.cloud._queue.current
        if state is None or not state.tours:
            return
        tour = self.draw.choice(state.tours)
        which = TourId(state.name, state.round, tour.number, tour.attempt + (self.draw.random() < 0.1))
        sender = site(self.draw.choice([tour.site] * 5 + ["s1", "s2"]))
        if self.draw.random() < 0.2:
            self.hear(sender, TourProgress(which, 0, 1, None, 0, 0, 0, 0))
            return
        ref = result(tour.number, state.round)
        self.hear(sender, Toured(which, {"model": ref}, 5, REPORTS, 0))
        self.tell(self.draw.choice([Pulled(ref.digest)] * 5 + [PullFailed(ref.digest, "gone")]))
        self.tell(Pulled(REPORTS.digest))

    def sites(self) -> None:
        epoch = Epoch(self.draw.randint(1, 2), bytes(8))
        state = self.draw.choice([BORN, BORN, BORN, DEAD])
        self.tell(Present(site(self.draw.choice(["s1", "s2"])), epoch, state))

    def roster(self) -> None:
        members = ref_of(str(self.draw.random()).encode())
        name = self.draw.choice(["s1", "s2"])
        epoch = Epoch(self.draw.randint(1, 2), bytes(8))
        self.hear(site(name), Roster(self.draw.randint(1, 99), members), self.now, epoch)
        self.tell(Pulled(members.digest))

    def waited(self) -> None:
        self.now += self.draw.choice([1.0, 10.0, 31.0, 61.0])
        self.tell(Woke())
        wake = self.cloud.wake_at()
        assert wake is None or wake > self.now, "it would be woken for nothing, for ever"

    def restarted(self) -> None:
        self.cloud = replayed(Coordinator("c"), self.records)
        self.work.clear()
        self.note(self.cloud.start(self.now))


RARE = {
    ("passing", "stop"),
    ("passing", "no room"),
    ("passing", "work failed"),
    ("planning next", "stop"),
    ("planning next", "no room"),
    ("planning", "signature lacking"),
    ("planning next", "signature lacking"),
    ("unsigned", "signed"),
    ("unsigned", "stop"),
    ("waiting", "rounds failed"),
}
"""What hardly ever happens by chance has a test of its own; signatures have theirs in `test_mandates`."""


def test_in_any_order_only_rows_of_the_table_are_taken_and_every_one_is(reached) -> None:
    for seed in range(250):
        anything = Anything(seed)
        for _ in range(150):
            anything.happen()
            queue = anything.cloud._queue
            for state in anything.cloud.state.jobs.values():
                assert STATUS[queue.step(state)] == state.status
    assert set(JOB.rows) - reached <= RARE


def test_work_between_legs_and_between_rounds_waits_for_room_and_may_fail(reached) -> None:
    for legs, step in ((1, "passing"), (2, "planning next")):
        bench = Bench()
        bench.running(**KINDS[3])
        for tour in bench.cloud.state.jobs["job"].tours[:legs]:
            bench.toured(tour.number, tour.site)
            if tour.leg == 0 and legs == 2:
                bench.did(PassLeg, LegPassed("job", 1, {"relay": MODEL}, {"relay": MODEL}))
        if legs == 2:
            bench.close()
        ((key, work),) = bench.work.items()
        for reason in ("DiskFull", "JobError"):
            bench.work.clear()
            bench.tell(DidNot(key, reason, "in vain"), 1.0)
            bench.tell(Woke(), 1.0 + WORK_AGAIN)
            assert [*bench.work.values()] == ([work] if reason == "DiskFull" else [])
        assert bench.cloud.state.jobs["job"].status == "refused"
        assert {(step, "no room"), (step, "work failed")} <= reached


def test_stopping_between_legs_and_between_rounds(reached) -> None:
    for legs, step in ((1, "passing"), (2, "planning next")):
        bench = Bench()
        bench.running(**KINDS[3])
        state = bench.cloud.state.jobs["job"]
        for tour in state.tours[:legs]:
            bench.toured(tour.number, tour.site)
            if tour.leg == 0 and legs == 2:
                bench.did(PassLeg, LegPassed("job", 1, {"relay": MODEL}, {"relay": MODEL}))
        if legs == 2:
            bench.close()
        assert bench.cloud._queue.step(state) == step
        assert records(bench.hear(OPERATOR, Stop("s", "job"))) == [JobEnded]
        assert (state.status, bench.work) == ("stopped", {})
    assert reached >= {("passing", "stop"), ("planning next", "stop")}


def test_a_status_for_every_state_and_work_for_some() -> None:
    assert set(STATUS) == set(JOB.states) > set(WORK)
    assert {STATUS[state] for state in JOB.ends} == set(ENDED)


@pytest.mark.parametrize(
    "state", [state for state in JOB.states if state not in ("planning", "passing", "closing", "unsigned")]
)
def test_a_restart_finds_the_step_again(state) -> None:
    tours = (TourPlan(0, "s1", ("a",)),) if state == "touring" else ()
    assert step_of(JobState("job", "", status=STATUS[state], tours=tours)) == state


def test_what_the_table_does_not_have_is_an_error_by_name() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    state = bench.cloud.state.jobs["job"]
    with pytest.raises(UnexpectedEvent, match="job: all home while compiling"):
        bench.cloud._queue._gather(state, 0.0)
    with pytest.raises(Fault, match="job job is waiting after JobWaits, at compiling"):
        bench.cloud._queue.write(JobWaits("job", "for nothing"))


def test_a_job_that_was_complete_when_the_power_failed_ends_after_the_restart() -> None:
    bench = Bench()
    bench.running(rounds=1)
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    assert records(bench.close())[-2:] == [RoundClosed, JobEnded]
    bench.records.pop()
    again = bench.replayed()
    assert again.state.jobs["job"].status == "running"
    assert records(again.start(0.0)) == [JobEnded]
    assert (again.state.jobs["job"].status, again.state.jobs["job"].detail) == ("done", "1 rounds are done")


def test_the_result_of_a_leg_that_has_not_departed_is_discarded() -> None:
    bench = Bench()
    bench.running(**KINDS[3])
    (later,) = [tour for tour in bench.cloud.state.jobs["job"].tours if tour.leg]
    which = TourId("job", 1, later.number, 1)
    toured = Toured(which, {"model": result(later.number)}, 5, REPORTS, 0)
    assert [type(message) for message in sends(bench.hear(site(later.site), toured))] == [TourDiscarded]
