"""The coordinator as a state machine: jobs, rounds, tours and sites, without a link and without training."""

from __future__ import annotations

import random
from math import nan
from typing import Any

import msgspec
import pytest

from coordinator.machine.sites import ROSTER_TIMEOUT, ReadRoster, RosterRead
from coordinator.records import (
    DevicesEstimated,
    JobCompiled,
    JobEnded,
    JobStarted,
    JobSubmitted,
    RoundClosed,
    RoundKeeps,
    RoundMeasured,
    RoundPlanned,
    TourArrived,
    TourGivenUp,
    TourMoved,
)
from coordinator.rounds.evaluation import MeasureRound
from coordinator.rounds.planning import NotYet, PlanRound, plan_round
from coordinator.rounds.preparing import PrepareJob
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import (
    Append,
    LinkUp,
    Present,
    Pull,
    Pulled,
    PullFailed,
    Send,
    StartWork,
    TimerFired,
    WorkDone,
    WorkFailed,
)
from sojourn.protocol.messages import (
    Birth,
    Death,
    Roster,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
)
from sojourn.protocol.operator_messages import Inspect, Jobs, Submit
from sojourn.protocol.wire import Epoch, Member, RoundReport, TourId
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.machine.cloud_bench import (
    BOOT,
    BORN,
    DEAD,
    EXEMPLARS,
    KIT,
    MEMBERS,
    MODEL,
    OFFER,
    OPERATOR,
    REPORTS,
    TEST,
    Bench,
    place,
    records,
    result,
    site,
    text,
)
from tests.sojourn.store.replays import sends


def test_job_runs_from_submission_to_end() -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    effects = bench.receive(OPERATOR, Submit("t", text()))
    assert records(effects) == [JobSubmitted, JobStarted]
    assert effects[0].sync
    assert sends(effects, Jobs)[0].jobs[0].status == "queued"
    effects = bench.compile()
    assert effects[0] == Append(effects[0].record, sync=True, blobs=effects[0].blobs)
    assert set(effects[0].blobs) == {ref.digest for ref in (KIT, MODEL, EXEMPLARS, TEST)}
    effects = bench.plan()
    assert records(effects) == [RoundPlanned]
    asked = zip([e.to.name for e in effects if isinstance(e, Send)], sends(effects, Tour), strict=True)
    assert [(name, tour.id, tour.hops) for name, tour in asked] == [
        ("s1", TourId("job", 1, 0, 1), ("a",)),
        ("s2", TourId("job", 1, 1, 1), ("b",)),
    ]
    effects = bench.toured(1, "s2")
    assert records(effects) == [TourArrived]
    assert sends(effects) == [TourAccepted(TourId("job", 1, 1, 1))]
    effects = bench.toured(0, "s1")
    assert any(isinstance(effect, StartWork) and isinstance(effect.work, CloseRound) for effect in effects)
    assert records(bench.close()) == [RoundClosed]
    tours = sends(bench.plan(), Tour)
    assert [tour.id for tour in tours] == [TourId("job", 2, 2, 1), TourId("job", 2, 3, 1)]
    bench.toured(2, "s1", 2)
    bench.toured(3, "s2", 2)
    assert records(bench.close()) == [RoundClosed, JobEnded]
    assert bench.cloud.state.jobs["job"].detail == "2 rounds are done"
    assert bench.cloud.wake_at() is None


def test_plan_is_on_disk_before_tours_are_sent() -> None:
    effects = Bench().running()
    planned = place(effects, lambda e: isinstance(e, Append))
    assert effects[planned].sync
    assert planned < place(effects, lambda e: isinstance(e, Send))


def test_result_is_on_disk_before_it_is_accepted() -> None:
    bench = Bench()
    bench.running()
    effects = bench.toured(0, "s1")
    arrived = place(effects, lambda e: isinstance(e, Append))
    assert effects[arrived].sync
    assert set(effects[arrived].blobs) == {result(0).digest, REPORTS.digest}
    assert arrived < place(effects, lambda e: isinstance(e, Send))


def test_duplicate_late_and_foreign_results_are_handled() -> None:
    bench = Bench()
    bench.running()
    toured = Toured(TourId("job", 1, 0, 1), {"model": result(0)}, 5, REPORTS, 0)
    assert sum(isinstance(effect, Pull) for effect in bench.receive(site("s1"), toured)) == 2
    assert not records(bench.receive(site("s1"), toured))
    bench.handle(Pulled(result(0).digest))
    bench.handle(Pulled(REPORTS.digest))
    before = bench.cloud.snapshot()
    assert sends(bench.receive(site("s1"), toured)) == [TourAccepted(toured.tour)]
    for sender, other in (
        ("s2", toured.tour),
        ("s1", TourId("job", 1, 0, 2)),
        ("s1", TourId("job", 1, 9, 1)),
        ("s1", TourId("x", 1, 0, 1)),
    ):
        answer = sends(bench.receive(site(sender), msgspec.structs.replace(toured, tour=other)))
        assert [type(message) for message in answer] == [TourDiscarded]
        assert sends(bench.receive(site(sender), TourProgress(other, 0, 1, None, 0, 0, 0, 0))) == [TourCancel(other)]
    assert bench.cloud.snapshot() == before
    bench.toured(1, "s2")
    bench.close()
    assert sends(bench.receive(site("s1"), toured)) == [TourAccepted(toured.tour)]


def test_failed_fetch_of_result_is_retried_on_next_offer() -> None:
    bench = Bench()
    bench.running()
    toured = Toured(TourId("job", 1, 0, 1), {"model": result(0)}, 5, REPORTS, 0)
    bench.receive(site("s1"), toured)
    bench.handle(PullFailed(result(0).digest, "gone"))
    assert sum(isinstance(effect, Pull) for effect in bench.receive(site("s1"), toured)) == 2


def test_job_that_does_not_compile_is_refused_and_next_starts() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    bench.receive(OPERATOR, Submit("t2", text("next")))
    (key,) = bench.work
    effects = bench.handle(WorkFailed(key, "failed", "no such layer"))
    assert records(effects) == [JobEnded, JobStarted]
    assert bench.cloud.state.jobs["job"].detail == "no such layer"


def test_waiting_job_resumes_when_devices_join() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    assert bench.cloud.state.jobs["job"].detail == "2 devices are needed to begin; none is online"
    bench.join("s1", ("a",))
    bench.plan()
    assert bench.cloud.state.jobs["job"].detail == (
        "2 devices are needed to begin; 1 is online (a). With fleet.devices = 1 it can begin with these "
        "(sojourn job continue job --devices 1)"
    )
    bench.join("s1", ("a", "b"), revision=2)
    assert records(bench.plan()) == [RoundPlanned]
    assert bench.cloud.state.jobs["job"].detail == ""


def test_site_without_roster_delays_a_job_only_briefly() -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"))
    bench.handle(Present(site("s2"), BOOT, Birth()), 5.0)
    bench.receive(OPERATOR, Submit("t", text()), 6.0)
    bench.compile(6.0)
    assert bench.cloud.state.jobs["job"].detail == "s2 has not sent its roster yet"
    bench.handle(TimerFired(), 5.0 + ROSTER_TIMEOUT)
    assert bench.cloud.state.jobs["job"].status == "waiting"
    bench.handle(TimerFired(), 6.0 + ROSTER_TIMEOUT)
    assert records(bench.plan(17.0)) == [RoundPlanned]


def test_sites_that_change_during_planning_trigger_a_new_plan() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.join("s1", ("a", "b"))
    effects = bench.plan()  # made before s1 came
    assert any(isinstance(effect, StartWork) and isinstance(effect.work, PlanRound) for effect in effects)
    assert records(bench.plan()) == [RoundPlanned]


def test_returning_site_with_same_devices_is_included_in_plan() -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"))
    bench.handle(Present(site("s1"), BOOT, Death()))
    bench.receive(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    assert bench.cloud.state.jobs["job"].status == "waiting"
    bench.join("s1", ("a", "b"), Epoch(2, b"abcdefgh"))
    assert records(bench.plan()) == [RoundPlanned]


def test_job_times_out_once() -> None:
    bench = Bench()
    bench.receive(OPERATOR, Submit("t", text(**{"fleet.timeout": 60})))
    bench.compile(5.0)
    bench.plan(5.0)
    assert bench.cloud.wake_at() == 65.0
    assert records(bench.handle(TimerFired(), 64.0)) == []
    assert records(bench.handle(TimerFired(), 65.0)) == [JobEnded]
    assert bench.cloud.state.jobs["job"].detail == (
        "waited 60 s for devices (fleet.timeout): 2 devices are needed to begin; none is online"
    )
    assert bench.cloud.wake_at() is None


@pytest.mark.parametrize(
    ("policy", "others", "record"),
    [("wait", (), None), ("drop", ("a",), TourGivenUp), ("reassign", ("a",), TourMoved), ("reassign", (), TourGivenUp)],
)
def test_silent_site_is_handled_by_lost_site_policy(policy, others, record) -> None:
    bench = Bench()
    bench.join("s3", others, now=-1.0)
    bench.running(joined=-1.0, **{"tours.on_lost_site": policy})
    at = "s3" if others else "s1"
    first = next(tour for tour in bench.cloud.state.jobs["job"].tours if tour.hops == ("a",))
    lost = first.site
    other = next(tour for tour in bench.cloud.state.jobs["job"].tours if tour.hops == ("b",))
    assert lost in {at, "s1"}
    progress = TourProgress(TourId("job", 1, other.number, 1), 0, 1, "b", 0, 0, 0, 0)
    bench.receive(site(other.site), progress, 20.0)
    bench.handle(Present(site(lost), BOOT, Death()), 25.0)
    effects = bench.handle(TimerFired(), 30.0)
    assert records(effects) == ([record] if record else [])
    sent = [(e.to, e.message) for e in effects if isinstance(e, Send)]
    asked = [(to.name, message.id.attempt) for to, message in sent if isinstance(message, Tour)]
    if record is TourMoved:
        assert asked[-1] == (({"s1", "s3"} - {lost}).pop(), 2)
        late = Toured(TourId("job", 1, first.number, 1), {}, 0, REPORTS, 0)
        assert [type(message) for message in sends(bench.receive(site(lost), late, 31.0))] == [TourDiscarded]
    elif record is None:
        assert asked[-1] == (lost, 1)
    else:
        late = Toured(TourId("job", 1, first.number, 1), {}, 0, REPORTS, 0)
        assert [type(message) for message in sends(bench.receive(site(lost), late, 31.0))] == [TourDiscarded]
    effects = bench.toured(other.number, other.site, now=32.0)
    assert any(isinstance(effect, StartWork) for effect in effects) == (record is TourGivenUp)


@pytest.mark.parametrize("policy", ["wait", "drop", "reassign"])
def test_endless_progress_does_not_block_a_job(policy) -> None:
    bench = Bench()
    bench.join("s3", ("a",), now=-1.0)
    bench.running(joined=-1.0, **{"tours.on_lost_site": policy, "tours.lease": 10, "tours.deadline": 20})
    (first, second) = bench.cloud.state.jobs["job"].tours
    bench.toured(second.number, second.site)
    for now in range(0, 40, 10):
        progress = TourProgress(TourId("job", 1, first.number, 1), 0, 1, "a", now, 10**6, 0, 0)
        assert records(bench.receive(site(first.site), progress, float(now))) == []
        assert records(bench.handle(TimerFired(), float(now))) == []
    effects = bench.handle(TimerFired(), 40.0)  # a visit of 20 s, and the same time for start and end
    assert records(effects) == [TourGivenUp]
    assert bench.cloud.state.jobs["job"].given_up == {first.number: "its tour is over the deadline of 40 s"}
    assert any(isinstance(effect, StartWork) for effect in effects)
    late = TourProgress(TourId("job", 1, first.number, 1), 0, 1, "a", 41, 10**6, 0, 0)
    assert [type(message) for message in sends(bench.receive(site(first.site), late, 41.0))] == [TourCancel]


def test_lease_keeps_running_while_a_result_is_fetched() -> None:
    bench = Bench()
    bench.running(**{"tours.on_lost_site": "drop"})
    bench.receive(site("s1"), Toured(TourId("job", 1, 0, 1), {"model": result(0)}, 5, REPORTS, 0), 20.0)
    bench.cloud.on_traffic(site("s1"), 100, 40.0, sign_of_life=True)
    bench.receive(site("s2"), TourProgress(TourId("job", 1, 1, 1), 0, 1, "b", 0, 0, 0, 0), 40.0)
    assert records(bench.handle(TimerFired(), 69.0)) == []
    assert records(bench.handle(TimerFired(), 70.0)) == [TourGivenUp, TourGivenUp]


def test_restarted_edge_server_gets_its_tours_again() -> None:
    bench = Bench()
    bench.running()
    for number, name in enumerate(("s1", "s2")):
        bench.receive(site(name), TourProgress(TourId("job", 1, number, 1), 0, 1, None, 0, 0, 0, 0))
    assert sends(bench.handle(Present(site("s1"), BOOT, Birth())), Tour) == []
    effects = bench.handle(Present(site("s1"), Epoch(1, b"lost one"), Birth()))
    assert [tour.id for tour in sends(effects, Tour)] == [TourId("job", 1, 0, 1)]
    bench.toured(0, "s1")
    assert sends(bench.handle(Present(site("s1"), Epoch(2, b"lost one"), Birth())), Tour) == []


@pytest.mark.parametrize("stage", ["compiling", "planning", "touring", "gathering", "closing", "waiting"])
def test_restart_resumes_job_at_its_stage(stage) -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",) if stage != "waiting" else ())
    bench.receive(OPERATOR, Submit("t", text()))
    steps = [
        ("compiling", bench.compile),
        ("planning", bench.plan),
        ("touring", lambda: bench.toured(0, "s1")),
        ("gathering", lambda: bench.toured(1, "s2")),
        ("closing", bench.close),
    ]
    for name, step in steps:
        if name == ("touring" if stage == "waiting" else stage):
            break
        step()
    twin = bench.replayed()
    effects = twin.start(0.0)
    work = [type(effect.work) for effect in effects if isinstance(effect, StartWork)]
    tours = [tour.id.number for tour in sends(effects, Tour)]
    expected = {
        "compiling": ([PrepareJob], []),
        "planning": ([], []),  # when the devices have reconnected
        "touring": ([], [0, 1]),
        "gathering": ([], [1]),
        "closing": ([CloseRound], []),
        "waiting": ([], []),
    }
    assert (work, tours) == expected[stage]


def test_restarted_round_waits_for_known_devices_for_a_while() -> None:
    for late in (False, True):
        bench = Bench()
        bench.running()
        bench.toured(0, "s1")
        bench.toured(1, "s2")
        bench.close()
        bench.cloud, bench.work = bench.replayed(), {}
        assert bench.note(bench.cloud.start(100.0))
        assert "was restarted" in bench.cloud.state.jobs["job"].detail
        bench.join("s1", ("a",), now=101.0)
        assert bench.work == {}
        if late:
            bench.handle(TimerFired(), 130.0)
        else:
            bench.join("s2", ("b",), now=102.0)
        (plan,) = bench.work.values()
        assert sorted(device for devices in plan.reach.values() for device in devices) == ["a"] + ["b"] * (not late)


@pytest.mark.parametrize("seed", range(15))
def test_any_event_sequence_can_be_replayed(seed) -> None:  # noqa: C901  # one case for each kind of event
    draw = random.Random(seed)
    bench = Bench()
    estimated = DevicesEstimated("job", {}, (), (), 0)
    for step in range(150):
        name, now = draw.choice(["s1", "s2"]), step * 3.0
        number, round_ = draw.randint(0, 5), draw.randint(1, 3)
        job = bench.cloud.state.jobs.get("job")
        if job and job.tours:
            tour = draw.choice(job.tours)
            number, round_, name = tour.number, job.round, tour.site
        which = TourId("job", round_, number, draw.choice([1, 1, 1, 2]))
        match draw.randint(0, 11):
            case 0:
                bench.receive(OPERATOR, Submit("t", text(rounds=3, **{"tours.on_lost_site": "reassign"})), now)
            case 1 | 2 | 3 if bench.work:
                key, work = bench.work.popitem()
                outcomes: dict[type, Any] = {
                    PrepareJob: lambda w: JobCompiled(w.name, KIT, {"model": MODEL}, {"model": MODEL}, EXEMPLARS, TEST),
                    PlanRound: lambda w: draw.choice([plan_round(w, MemoryBlobs()), NotYet("not now")]),
                    ReadRoster: lambda w: RosterRead(w.site, w.epoch, w.revision, (Member(w.site, BOOT, OFFER),)),
                    MeasureRound: lambda w: RoundMeasured(w.job, w.round, 0.5, 1.0),
                    CloseRound: lambda w: _closed(w) if w.state.phase == "train" else estimated,
                }
                bench.handle(WorkDone(key, outcomes[type(work)](work)), now)
            case 4:
                state, epoch = draw.choice([BORN, BORN, DEAD]), Epoch(draw.randint(1, 2), bytes(8))
                bench.handle(Present(site(name), epoch, state), now)
            case 5:
                bench.receive(site(name), Roster(draw.randint(1, 3), MEMBERS), now)
                bench.handle(Pulled(MEMBERS.digest), now)
            case 6 | 7:
                bench.receive(site(name), Toured(which, {"model": result(number)}, 5, REPORTS, 0), now)
            case 8:
                bench.handle(draw.choice([Pulled(result(number).digest), Pulled(REPORTS.digest)]), now)
            case 9:
                bench.handle(draw.choice([PullFailed(REPORTS.digest, "gone"), LinkUp(), TimerFired()]), now)
            case 10:
                bench.receive(site(name), TourProgress(which, 0, 1, None, 0, 0, 0, 0), now)
            case 11:
                bench.receive(OPERATOR, draw.choice([Inspect("t"), Inspect("t", "job")]), now)
        bench.cloud.live()
        bench.cloud.wake_at()
    for cut in range(len(bench.records)):
        assert bench.replayed(cut).snapshot() == bench.cloud.snapshot()


def _closed(work: CloseRound) -> RoundClosed:
    found = 0.5 if work.measure else nan
    report = RoundReport(work.state.round, found, found, 2, 2, 0, 0, 1.0, {})
    return RoundClosed(
        work.state.name,
        {"model": MODEL},
        {"model": MODEL},
        (),
        report,
        keeps=RoundKeeps(evaluation_pending=not work.measure),
    )
