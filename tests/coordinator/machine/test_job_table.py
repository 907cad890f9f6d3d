"""The table of a job's life: every row is reached, and no message causes an event outside of it."""

from __future__ import annotations

import random
from math import nan

import pytest

from coordinator.job_state import JobState
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.job_queue import JobQueue
from coordinator.machine.job_table import ENDS, JOB, JobEvent, JobStep, step_of
from coordinator.machine.job_work import WORK_AGAIN
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
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import CancelWork, Present, Pulled, PullFailed, StartWork, TimerFired, WorkDone, WorkFailed
from sojourn.protocol.messages import Roster, TourDiscarded, Toured, TourProgress
from sojourn.protocol.operator_messages import Continue, Export, Inspect, Remove, Stop, Submit
from sojourn.protocol.wire import Epoch, Member, RoundReport, TourId, VisitReason
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
Row = tuple[JobStep, JobEvent]
FAILURES: tuple[VisitReason, ...] = ("disk", "failed")
At, On = JobStep, JobEvent


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> set[Row]:
    """Collect the rows of the table that occur during a test."""
    return rows_taken(monkeypatch, JOB)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the step that follows from each record with the step that the table names."""
    write = JobQueue.write

    def comparing(queue: JobQueue, record, event=None, **others):
        before = queue.durable.jobs.get(record.job)
        wanted = JOB.rows[queue.step(before), event] if before and event else None
        appended = write(queue, record, event, **others)
        assert wanted in (None, queue.step(queue.durable.jobs[record.job]))
        return appended

    monkeypatch.setattr(JobQueue, "write", comparing)


class Anything(Bench):
    """A coordinator with random events from peers, operators, work and timers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.now = 0.0

    def handle(self, event, now=0.0):
        return self.note(self.cloud.handle(event, self.now))

    def note(self, effects):
        for effect in effects:
            match effect:
                case StartWork():
                    assert effect.key not in self.work or effect.key.startswith("roster")
                case CancelWork():
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
        self.receive(OPERATOR, self.draw.choice([submit, submit, go_on, go_on, *others]))

    def stopped(self) -> None:
        state = self.cloud._queue.current
        if state and self.draw.random() < 0.3:
            self.receive(OPERATOR, Stop(f"s{self.draw.random()}", state.name))

    def worked(self) -> None:
        if self.work:
            key = self.draw.choice(list(self.work))
            self.handle(WorkDone(key, self.outcome(self.work.pop(key))))

    def failed(self) -> None:
        if self.work and self.draw.random() < 0.5:
            key = self.draw.choice([key for key in self.work if "roster" not in key] or ["nothing"])
            self.work.pop(key, None)
            self.handle(WorkFailed(key, "failed", "no result"))

    def no_room(self) -> None:
        """Fill the disk for a moment, with or without another event meanwhile."""
        keys = [key for key in self.work if "roster" not in key]
        if keys:
            self.work.pop(key := self.draw.choice(keys))
            self.handle(WorkFailed(key, "disk", "no room"))
            if self.draw.random() < 0.9:
                self.now += WORK_AGAIN
                self.handle(TimerFired())

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
                    work.state.name, HELD, HELD, (), report, keeps=RoundKeeps(evaluation_pending=not work.measure)
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
            self.receive(sender, TourProgress(which, 0, 1, None, 0, 0, 0, 0))
            return
        ref = result(tour.number, state.round)
        self.receive(sender, Toured(which, {"model": ref}, 5, REPORTS, 0))
        self.handle(self.draw.choice([Pulled(ref.digest)] * 5 + [PullFailed(ref.digest, "gone")]))
        self.handle(Pulled(REPORTS.digest))

    def sites(self) -> None:
        epoch = Epoch(self.draw.randint(1, 2), bytes(8))
        state = self.draw.choice([BORN, BORN, BORN, DEAD])
        self.handle(Present(site(self.draw.choice(["s1", "s2"])), epoch, state))

    def roster(self) -> None:
        members = ref_of(str(self.draw.random()).encode())
        name = self.draw.choice(["s1", "s2"])
        epoch = Epoch(self.draw.randint(1, 2), bytes(8))
        self.receive(site(name), Roster(self.draw.randint(1, 99), members), self.now, epoch)
        self.handle(Pulled(members.digest))

    def waited(self) -> None:
        self.now += self.draw.choice([1.0, 10.0, 31.0, 61.0])
        self.handle(TimerFired())
        wake = self.cloud.wake_at()
        assert wake is None or wake > self.now, "it would be woken for nothing, for ever"

    def restarted(self) -> None:
        self.cloud = replayed(Coordinator("c"), self.records)
        self.work.clear()
        self.note(self.cloud.start(self.now))


RARE = {
    (At.PASSING, On.STOP),
    (At.PASSING, On.NO_ROOM),
    (At.PASSING, On.WORK_FAILED),
    (At.PLANNING, On.STOP),
    (At.PLANNING, On.NO_ROOM),
    (At.WAITING, On.SIGNATURE_MISSING),
    (At.PLANNING, On.SIGNATURE_MISSING),
    (At.UNSIGNED, On.SIGNED),
    (At.UNSIGNED, On.STOP),
    (At.WAITING, On.ROUNDS_FAILED),
}
"""Events that rarely happen by chance are tested separately; signatures have theirs in `test_mandates`."""


def test_random_events_take_only_and_all_rows_of_the_table(reached, compared) -> None:
    for seed in range(250):
        anything = Anything(seed)
        for _ in range(150):
            anything.happen()
    assert set(JOB.rows) - reached <= RARE


def test_work_between_legs_and_rounds_waits_for_disk_or_fails(reached) -> None:
    for legs, step in ((1, At.PASSING), (2, At.PLANNING)):
        bench = Bench()
        bench.running(**KINDS[3])
        for tour in bench.cloud.state.jobs["job"].tours[:legs]:
            bench.toured(tour.number, tour.site)
            if tour.leg == 0 and legs == 2:
                bench.did(PassLeg, LegPassed("job", 1, {"relay": MODEL}, {"relay": MODEL}))
        if legs == 2:
            bench.close()
        ((key, work),) = bench.work.items()
        for reason in FAILURES:
            bench.work.clear()
            bench.handle(WorkFailed(key, reason, "no result"), 1.0)
            bench.handle(TimerFired(), 1.0 + WORK_AGAIN)
            assert [*bench.work.values()] == ([work] if reason == "disk" else [])
        assert bench.cloud.state.jobs["job"].status == "refused"
        assert {(step, On.NO_ROOM), (step, On.WORK_FAILED)} <= reached


def test_job_stops_between_legs_and_between_rounds(reached) -> None:
    for legs, step in ((1, At.PASSING), (2, At.PLANNING)):
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
        assert records(bench.receive(OPERATOR, Stop("s", "job"))) == [JobEnded]
        assert (state.status, bench.work) == ("stopped", {})
    assert reached >= {(At.PASSING, On.STOP), (At.PLANNING, On.STOP)}


def test_every_end_has_a_status() -> None:
    assert set(ENDS.values()) == set(ENDED)


TOURS = (TourPlan(0, "s1", ("a",)), TourPlan(1, "s1", ("b",), leg=1))
DURABLE: dict[JobStep, JobState] = {
    At.WAITING: JobState("job", "", status="waiting"),
    At.UNSIGNED: JobState("job", "", status="waiting", unsigned=True),
    At.TOURING: JobState("job", "", status="running", tours=TOURS),
    At.PASSING: JobState("job", "", status="running", tours=TOURS, given_up={0: "lost"}),
    At.CLOSING: JobState("job", "", status="running", tours=TOURS, given_up={0: "lost", 1: "lost"}, leg=1),
    At.PLANNING: JobState("job", "", status="running"),
}


def test_every_step_follows_from_durable_state() -> None:
    for step, state in DURABLE.items():
        assert step_of(state, gathered=state.gathered) is step
    named = {step_of(JobState("job", "", status=status), gathered=False) for status in ("queued", "compiling", *ENDED)}
    assert {*named, *DURABLE} == set(JobStep)


def test_every_step_survives_a_restart() -> None:
    bench = Bench()
    bench.running(**KINDS[3])
    state = bench.cloud.state.jobs["job"]
    steps = []
    for tour in state.tours:
        bench.toured(tour.number, tour.site)
        again = bench.replayed()
        work = [effect for effect in again.start(0.0) if isinstance(effect, StartWork)]
        steps.append((again._queue.step(again.state.jobs["job"]), [type(effect.work) for effect in work]))
        if tour.leg == 0:
            bench.did(PassLeg, LegPassed("job", 1, {"relay": MODEL}, {"relay": MODEL}))
    assert steps == [(At.PASSING, [PassLeg]), (At.CLOSING, [CloseRound])]


def test_event_outside_the_table_raises_named_error() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    before = bench.cloud.snapshot()
    with pytest.raises(UnexpectedEvent, match="job: devices missing in state compiling"):
        bench.cloud._queue.write(JobWaits("job", "for nothing"), On.DEVICES_MISSING)
    assert bench.cloud.snapshot() == before


def test_job_complete_at_power_loss_ends_after_restart() -> None:
    bench = Bench()
    bench.running(rounds=1)
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    assert records(bench.close())[-2:] == [RoundClosed, JobEnded]
    bench.records.pop()
    again = bench.replayed()
    assert again.state.jobs["job"].status == "running"
    assert records(again.start(0.0)) == [JobEnded]
    assert (again.state.jobs["job"].status, again.state.jobs["job"].detail) == ("done", "1 round is done")


def test_result_of_future_leg_is_discarded() -> None:
    bench = Bench()
    bench.running(**KINDS[3])
    (later,) = [tour for tour in bench.cloud.state.jobs["job"].tours if tour.leg]
    which = TourId("job", 1, later.number, 1)
    toured = Toured(which, {"model": result(later.number)}, 5, REPORTS, 0)
    assert [type(message) for message in sends(bench.receive(site(later.site), toured))] == [TourDiscarded]
