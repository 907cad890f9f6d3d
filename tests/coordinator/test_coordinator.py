"""The coordinator as a state machine: jobs, rounds, tours and sites, without a link and without training."""

from __future__ import annotations

import random

import msgspec
import pytest

from coordinator.bench import ExportModel, ModelExported
from coordinator.coordinator import Coordinator
from coordinator.coordinator_records import (
    DevicesEstimated,
    JobCompiled,
    JobEnded,
    JobStarted,
    JobSubmitted,
    RoundClosed,
    RoundPlanned,
    TourArrived,
    TourGivenUp,
    TourMoved,
)  # fmt: skip
from coordinator.planning import NotYet, PlanRound, plan_round
from coordinator.preparing import PrepareJob
from coordinator.results import CloseRound
from coordinator.sites import ReadRoster, RosterRead
from sojourn.blobs import MemoryBlobs, ref_of
from sojourn.machine import (
    Append,
    Did,
    DidNot,
    Do,
    Linked,
    Present,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Send,
    Undo,
    Woke,
)  # fmt: skip
from sojourn.messages import (
    Birth,
    Death,
    Export,
    Exported,
    Inspect,
    Jobs,
    Refused,
    Roster,
    RosterAsk,
    RosterSeen,
    Stop,
    Submit,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
)  # fmt: skip
from sojourn.topics import Address
from sojourn.wire import Epoch, Member, Offer, RoundReport, TourId

OPERATOR = Address("cloud", "operator")
BOOT = Epoch(1, b"12345678")
KIT, MODEL, EXEMPLARS, TEST, REPORTS, MEMBERS = (
    ref_of(name.encode()) for name in ("kit", "model", "exemplars", "test", "reports", "members")
)
OFFER = Offer("1", "m", "r", 4, 0, ("sgd",), "npz")


def site(name: str) -> Address:
    return Address("edge", name)


def text(name="job", **changes) -> str:
    lines = {"rounds": 2, "fleet.devices": 2, "tours.site_lease": 30} | changes
    return f'name = "{name}"\nstrategy = "fedavg"\ndata.test = "digits"\n' + "\n".join(
        f"{key} = {msgspec.json.encode(value).decode()}" for key, value in lines.items()
    )


def result(number: int, round_: int = 1):
    return ref_of(f"result {round_} {number}".encode(), "float32")


class Bench:
    """A coordinator whose every record is kept, whose work is done by hand, and whose replayed twin is compared."""

    def __init__(self) -> None:
        self.cloud = Coordinator("c")
        self.records: list[bytes] = []
        self.work: dict[str, object] = {}

    def tell(self, event, now=0.0):
        return self.note(self.cloud.handle(event, now))

    def note(self, effects):
        for effect in effects:
            match effect:
                case Append():
                    self.records.append(msgspec.msgpack.encode(effect.record))
                case Do():
                    self.work[effect.key] = effect.work
                case Undo():
                    self.work.pop(effect.key, None)
        assert self.replayed().snapshot() == self.cloud.snapshot()
        return effects

    def replayed(self, cut=0) -> Coordinator:
        twin = Coordinator("c")
        for number, record in enumerate(self.records):
            if number == cut:
                twin.restore(twin.snapshot())
            twin.apply(msgspec.msgpack.decode(record, type=twin.record_form))
        return twin

    def hear(self, sender, message, now=0.0, epoch=BOOT):
        return self.tell(Received(sender, epoch, message), now)

    def did(self, form, outcome, now=0.0):
        """The piece of work of this kind is done."""
        key = next(key for key, work in self.work.items() if isinstance(work, form))
        work = self.work.pop(key)
        return self.tell(Did(key, outcome(work) if callable(outcome) else outcome), now)

    def join(self, name: str, devices=(), epoch=BOOT, revision=1, now=0.0):
        """A site is born and tells its roster."""
        self.tell(Present(site(name), epoch, Birth()), now)
        members = ref_of(f"{name} {devices} {revision}".encode())
        self.hear(site(name), Roster(revision, members), now, epoch)
        self.tell(Pulled(members.digest), now)
        listed = tuple(Member(device, epoch, OFFER) for device in devices)
        return self.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, listed), now)

    def compile(self, now=0.0):
        held = {"model": MODEL}
        return self.did(PrepareJob, lambda work: JobCompiled(work.name, KIT, held, held, EXEMPLARS, TEST), now)

    def plan(self, now=0.0):
        return self.did(PlanRound, lambda work: plan_round(work, MemoryBlobs()), now)

    def running(self, **changes) -> list:
        """A job with one tour at each of two sites; returns the effects of its plan."""
        self.join("s1", ("a",))
        self.join("s2", ("b",))
        self.hear(OPERATOR, Submit("t", text(**changes)))
        self.compile()
        return self.plan()

    def toured(self, number: int, name: str, round_=1, now=0.0):
        """A site brings a tour's result, and it is fetched."""
        ref = result(number, round_)
        self.hear(site(name), Toured(TourId("job", round_, number, 1), {"model": ref}, 5, REPORTS, 0), now)
        self.tell(Pulled(ref.digest), now)
        return self.tell(Pulled(REPORTS.digest), now)

    def close(self, now=0.0, accuracy=0.5):
        def closed(work: CloseRound):
            report = RoundReport(work.job.round, accuracy, 1.0, 2, 2, 0, 0, 1.0, {})
            return RoundClosed(work.job.name, {"model": MODEL}, {"model": MODEL}, (), report)

        return self.did(CloseRound, closed, now)


def sends(effects, form=None) -> list:
    return [e.message for e in effects if isinstance(e, Send) and (form is None or isinstance(e.message, form))]


def records(effects) -> list[type]:
    return [type(effect.record) for effect in effects if isinstance(effect, Append)]


def place(effects, wanted) -> int:
    return next(at for at, effect in enumerate(effects) if wanted(effect))


def test_a_job_from_beginning_to_end() -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    effects = bench.hear(OPERATOR, Submit("t", text()))
    assert records(effects) == [JobSubmitted, JobStarted]
    assert effects[0].sync
    assert sends(effects, Jobs)[0].jobs[0].status == "queued"
    effects = bench.compile()
    assert effects[0] == Append(effects[0].record, sync=True, blobs=effects[0].blobs)
    assert set(effects[0].blobs) == {ref.digest for ref in (KIT, MODEL, EXEMPLARS, TEST)}
    effects = bench.plan()
    assert records(effects) == [RoundPlanned]
    tours = [(e.to.name, e.message) for e in effects if isinstance(e, Send)]
    assert [(name, tour.tour, tour.hops) for name, tour in tours] == [
        ("s1", TourId("job", 1, 0, 1), ("a",)), ("s2", TourId("job", 1, 1, 1), ("b",)),
    ]  # fmt: skip
    effects = bench.toured(1, "s2")
    assert records(effects) == [TourArrived]
    assert sends(effects) == [TourAccepted(TourId("job", 1, 1, 1))]
    effects = bench.toured(0, "s1")
    assert any(isinstance(effect, Do) and isinstance(effect.work, CloseRound) for effect in effects)
    assert records(bench.close()) == [RoundClosed]
    tours = sends(bench.plan(), Tour)
    assert [tour.tour for tour in tours] == [TourId("job", 2, 2, 1), TourId("job", 2, 3, 1)]
    bench.toured(2, "s1", 2)
    bench.toured(3, "s2", 2)
    assert records(bench.close()) == [RoundClosed, JobEnded]
    assert bench.cloud.state.jobs["job"].detail == "2 rounds are done"
    assert bench.cloud.wake_at() is None


def test_a_plan_is_on_the_disk_before_its_tours_leave() -> None:
    effects = Bench().running()
    planned = place(effects, lambda e: isinstance(e, Append))
    assert effects[planned].sync
    assert planned < place(effects, lambda e: isinstance(e, Send))


def test_a_result_is_on_the_disk_before_it_is_accepted() -> None:
    bench = Bench()
    bench.running()
    effects = bench.toured(0, "s1")
    arrived = place(effects, lambda e: isinstance(e, Append))
    assert effects[arrived].sync
    assert set(effects[arrived].blobs) == {result(0).digest, REPORTS.digest}
    assert arrived < place(effects, lambda e: isinstance(e, Send))


def test_results_that_come_again_late_or_from_nowhere() -> None:
    bench = Bench()
    bench.running()
    toured = Toured(TourId("job", 1, 0, 1), {"model": result(0)}, 5, REPORTS, 0)
    assert sum(isinstance(effect, Pull) for effect in bench.hear(site("s1"), toured)) == 2
    assert not records(bench.hear(site("s1"), toured))
    bench.tell(Pulled(result(0).digest))
    bench.tell(Pulled(REPORTS.digest))
    before = bench.cloud.snapshot()
    assert sends(bench.hear(site("s1"), toured)) == [TourAccepted(toured.tour)]
    for sender, other in (
        ("s2", toured.tour), ("s1", TourId("job", 1, 0, 2)), ("s1", TourId("job", 1, 9, 1)),
        ("s1", TourId("x", 1, 0, 1)),
    ):  # fmt: skip
        answer = sends(bench.hear(site(sender), msgspec.structs.replace(toured, tour=other)))
        assert [type(message) for message in answer] == [TourDiscarded]
        assert sends(bench.hear(site(sender), TourProgress(other, 0, 1, None, 0, 0, 0, 0))) == [TourCancel(other)]
    assert bench.cloud.snapshot() == before
    bench.toured(1, "s2")
    bench.close()
    assert sends(bench.hear(site("s1"), toured)) == [TourAccepted(toured.tour)]


def test_a_result_that_cannot_be_fetched_is_fetched_when_it_is_offered_again() -> None:
    bench = Bench()
    bench.running()
    toured = Toured(TourId("job", 1, 0, 1), {"model": result(0)}, 5, REPORTS, 0)
    bench.hear(site("s1"), toured)
    bench.tell(PullFailed(result(0).digest, "gone"))
    assert sum(isinstance(effect, Pull) for effect in bench.hear(site("s1"), toured)) == 2


def test_submitting_twice_changes_nothing_and_names_are_unique() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    before = bench.cloud.snapshot()
    assert [type(m) for m in sends(bench.hear(OPERATOR, Submit("t", text())))] == [Jobs]
    (refused,) = sends(bench.hear(OPERATOR, Submit("other", text())))
    assert refused == Refused("other", "there is a job 'job' already (compiling); give this one another name")
    for wrong in ("", "name = 3", "name = ", text(round=3), "a = " + "[" * 20_000):
        assert [type(m) for m in sends(bench.hear(OPERATOR, Submit("x", wrong)))] == [Refused]
    assert bench.cloud.snapshot() == before


def test_questions_are_answered() -> None:
    bench = Bench()
    assert sends(bench.hear(OPERATOR, Inspect("t"))) == [Jobs("t", ())]
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
    effects = bench.did(ExportModel, ModelExported("e", "operator", MODEL, 0.5))
    assert sends(effects) == [Exported("e", MODEL, 0.5)]
    assert sends(bench.hear(OPERATOR, Export("e", "job"))) == [Exported("e", MODEL, 0.5)]
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


def test_a_job_that_cannot_be_compiled_is_refused_and_the_next_begins() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    bench.hear(OPERATOR, Submit("t2", text("next")))
    (key,) = bench.work
    effects = bench.tell(DidNot(key, "ModelError", "no such layer"))
    assert records(effects) == [JobEnded, JobStarted]
    assert bench.cloud.state.jobs["job"].detail == "no such layer"


def test_a_job_waits_and_goes_on_when_devices_come() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    assert bench.cloud.state.jobs["job"].detail == "2 devices are needed; 0 are here"
    bench.join("s1", ("a",))
    bench.plan()
    assert bench.cloud.state.jobs["job"].detail == "2 devices are needed; 1 are here"
    bench.join("s1", ("a", "b"), revision=2)
    assert records(bench.plan()) == [RoundPlanned]
    assert bench.cloud.state.jobs["job"].detail == ""


def test_sites_that_change_while_a_plan_is_made_are_planned_with() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.join("s1", ("a", "b"))
    effects = bench.plan()  # made before s1 came
    assert any(isinstance(effect, Do) and isinstance(effect.work, PlanRound) for effect in effects)
    assert records(bench.plan()) == [RoundPlanned]


def test_a_site_that_goes_and_comes_back_with_the_same_devices_is_planned_with() -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"))
    bench.tell(Present(site("s1"), BOOT, Death()))
    bench.hear(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    assert bench.cloud.state.jobs["job"].status == "waiting"
    bench.join("s1", ("a", "b"), Epoch(2, b"abcdefgh"))
    assert records(bench.plan()) == [RoundPlanned]


def test_patience_ends_once() -> None:
    bench = Bench()
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.patience": 60})))
    bench.compile(5.0)
    bench.plan(5.0)
    assert bench.cloud.wake_at() == 65.0
    assert records(bench.tell(Woke(), 64.0)) == []
    assert records(bench.tell(Woke(), 65.0)) == [JobEnded]
    assert bench.cloud.state.jobs["job"].detail == "nobody came: 2 devices are needed; 0 are here"
    assert bench.cloud.wake_at() is None


@pytest.mark.parametrize(
    ("policy", "others", "record"),
    [("wait", (), None), ("drop", ("a",), TourGivenUp), ("reassign", ("a",), TourMoved), ("reassign", (), TourGivenUp)],
)
def test_a_site_without_a_sign_of_life(policy, others, record) -> None:
    bench = Bench()
    bench.join("s3", others)
    bench.running(**{"tours.on_lost_site": policy})
    at = "s3" if others else "s1"
    first = next(tour for tour in bench.cloud.state.jobs["job"].tours if tour.hops == ("a",))
    lost = first.site
    other = next(tour for tour in bench.cloud.state.jobs["job"].tours if tour.hops == ("b",))
    assert lost in {at, "s1"}
    progress = TourProgress(TourId("job", 1, other.number, 1), 0, 1, "b", 0, 0, 0, 0)
    bench.hear(site(other.site), progress, 20.0)
    bench.tell(Present(site(lost), BOOT, Death()), 25.0)
    effects = bench.tell(Woke(), 30.0)
    assert records(effects) == ([record] if record else [])
    tours = [e for e in effects if isinstance(e, Send) and isinstance(e.message, Tour)]
    asked = [(effect.to.name, effect.message.tour.attempt) for effect in tours]
    if record is TourMoved:
        assert asked[-1] == (({"s1", "s3"} - {lost}).pop(), 2)
        late = Toured(TourId("job", 1, first.number, 1), {}, 0, REPORTS, 0)
        assert [type(message) for message in sends(bench.hear(site(lost), late, 31.0))] == [TourDiscarded]
    elif record is None:
        assert asked[-1] == (lost, 1)
    else:
        late = Toured(TourId("job", 1, first.number, 1), {}, 0, REPORTS, 0)
        assert [type(message) for message in sends(bench.hear(site(lost), late, 31.0))] == [TourDiscarded]
    effects = bench.toured(other.number, other.site, now=32.0)
    assert any(isinstance(effect, Do) for effect in effects) == (record is TourGivenUp)


def test_a_lease_runs_on_while_a_result_is_fetched() -> None:
    bench = Bench()
    bench.running(**{"tours.on_lost_site": "drop"})
    bench.hear(site("s1"), Toured(TourId("job", 1, 0, 1), {"model": result(0)}, 5, REPORTS, 0), 20.0)
    bench.cloud.heard(site("s1"), 100, 40.0, spoke=True)
    bench.hear(site("s2"), TourProgress(TourId("job", 1, 1, 1), 0, 1, "b", 0, 0, 0, 0), 40.0)
    assert records(bench.tell(Woke(), 69.0)) == []
    assert records(bench.tell(Woke(), 70.0)) == [TourGivenUp, TourGivenUp]


def test_an_edge_server_that_is_born_again_is_asked_for_its_tours_again() -> None:
    bench = Bench()
    bench.running()
    for number, name in enumerate(("s1", "s2")):
        bench.hear(site(name), TourProgress(TourId("job", 1, number, 1), 0, 1, None, 0, 0, 0, 0))
    assert sends(bench.tell(Present(site("s1"), BOOT, Birth())), Tour) == []
    effects = bench.tell(Present(site("s1"), Epoch(1, b"lost one"), Birth()))
    assert [tour.tour for tour in sends(effects, Tour)] == [TourId("job", 1, 0, 1)]
    bench.toured(0, "s1")
    assert sends(bench.tell(Present(site("s1"), Epoch(2, b"lost one"), Birth())), Tour) == []


def test_a_roster_is_seen_only_when_it_was_read() -> None:
    bench = Bench()
    bench.tell(Present(site("s1"), BOOT, Birth()))
    effects = bench.hear(site("s1"), Roster(1, MEMBERS))
    assert effects == [Pull(MEMBERS, site("s1"))]
    bench.tell(PullFailed(MEMBERS.digest, "disk"))
    assert bench.hear(site("s1"), Roster(1, MEMBERS)) == [Pull(MEMBERS, site("s1"))]
    assert MEMBERS.digest in bench.cloud.live()
    bench.tell(Pulled(MEMBERS.digest))
    effects = bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, ()))
    assert sends(effects) == [RosterSeen(1)]
    assert sends(bench.hear(site("s1"), Roster(1, MEMBERS))) == [RosterSeen(1)]
    assert MEMBERS.digest not in bench.cloud.live()


def test_two_sites_with_the_same_devices_have_the_same_roster() -> None:
    bench = Bench()
    for name in ("s1", "s2"):
        bench.tell(Present(site(name), BOOT, Birth()))
        bench.hear(site(name), Roster(1, MEMBERS))
    bench.tell(Pulled(MEMBERS.digest))
    members = (Member("a", BOOT, OFFER),)
    for _ in range(2):
        bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, members))
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = [work for work in bench.work.values() if isinstance(work, PlanRound)]
    assert plan.reach == {"s1": ("a",), "s2": ("a",)}


def test_a_roster_of_a_site_that_lost_its_store_counts() -> None:
    bench = Bench()
    bench.join("s1", ("a",), Epoch(9, b"12345678"), revision=7)
    bench.join("s1", ("b",), Epoch(1, b"abcdefgh"), revision=1)
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = [work for work in bench.work.values() if isinstance(work, PlanRound)]
    assert plan.reach == {"s1": ("b",)}


def test_an_older_roster_does_not_replace_a_newer_one() -> None:
    bench = Bench()
    bench.tell(Present(site("s1"), BOOT, Birth()))
    old, new = ref_of(b"old"), ref_of(b"new")
    bench.hear(site("s1"), Roster(1, old))
    bench.tell(Pulled(old.digest))
    bench.hear(site("s1"), Roster(2, new))
    bench.tell(Pulled(new.digest))
    assert len(bench.work) == 2

    def read(work: ReadRoster) -> RosterRead:
        return RosterRead(work.site, work.epoch, work.revision, (Member(f"of-{work.revision}", BOOT, OFFER),))

    for _ in range(2):
        bench.did(ReadRoster, read)
    bench.hear(OPERATOR, Submit("t", text(**{"fleet.devices": 1})))
    bench.compile()
    (plan,) = [work for work in bench.work.values() if isinstance(work, PlanRound)]
    assert plan.reach == {"s1": ("of-2",)}


def test_edge_servers_are_asked_for_their_rosters_until_they_tell() -> None:
    bench = Bench()
    assert sends(bench.tell(Present(site("s1"), BOOT, Birth()), 0.0)) == [RosterAsk()]
    assert sends(bench.tell(Woke(), 1.0)) == [RosterAsk()]
    assert sends(bench.tell(Linked(), 1.5)) == [RosterAsk()]
    bench.tell(Present(site("s1"), BOOT, Death()), 2.0)
    assert bench.cloud.wake_at() is None


@pytest.mark.parametrize("stage", ["compiling", "planning", "touring", "gathering", "closing", "waiting"])
def test_a_restart_takes_the_job_up_where_it_was(stage) -> None:
    bench = Bench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",) if stage != "waiting" else ())
    bench.hear(OPERATOR, Submit("t", text()))
    steps = [
        ("compiling", bench.compile), ("planning", bench.plan),
        ("touring", lambda: bench.toured(0, "s1")), ("gathering", lambda: bench.toured(1, "s2")), ("closing", None),
    ]  # fmt: skip
    for name, step in steps:
        if name == ("touring" if stage == "waiting" else stage):
            break
        step()
    twin = bench.replayed()
    effects = twin.start(0.0)
    work = [type(effect.work) for effect in effects if isinstance(effect, Do)]
    tours = [tour.tour.tour for tour in sends(effects, Tour)]
    expected = {
        "compiling": ([PrepareJob], []), "planning": ([PlanRound], []), "touring": ([], [0, 1]), "gathering": ([], [1]),
        "closing": ([CloseRound], []), "waiting": ([PlanRound], []),
    }  # fmt: skip
    assert (work, tours) == expected[stage]


@pytest.mark.parametrize("seed", range(15))
def test_any_course_of_events_can_be_replayed(seed) -> None:  # noqa: C901  # one case for each kind of event
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
                bench.hear(OPERATOR, Submit("t", text(rounds=3, **{"tours.on_lost_site": "reassign"})), now)
            case 1 | 2 | 3 if bench.work:
                key, work = bench.work.popitem()
                outcome = {
                    PrepareJob: lambda w: JobCompiled(w.name, KIT, {"model": MODEL}, {"model": MODEL}, EXEMPLARS, TEST),
                    PlanRound: lambda w: draw.choice([plan_round(w, MemoryBlobs()), NotYet("not now")]),
                    ReadRoster: lambda w: RosterRead(w.site, w.epoch, w.revision, (Member(w.site, BOOT, OFFER),)),
                    CloseRound: lambda w: _closed(w) if w.job.phase == "train" else estimated,
                }[type(work)](work)
                bench.tell(Did(key, outcome), now)
            case 4:
                state, epoch = draw.choice([Birth(), Birth(), Death()]), Epoch(draw.randint(1, 2), bytes(8))
                bench.tell(Present(site(name), epoch, state), now)
            case 5:
                bench.hear(site(name), Roster(draw.randint(1, 3), MEMBERS), now)
                bench.tell(Pulled(MEMBERS.digest), now)
            case 6 | 7:
                bench.hear(site(name), Toured(which, {"model": result(number)}, 5, REPORTS, 0), now)
            case 8:
                bench.tell(draw.choice([Pulled(result(number).digest), Pulled(REPORTS.digest)]), now)
            case 9:
                bench.tell(draw.choice([PullFailed(REPORTS.digest, "gone"), Linked(), Woke()]), now)
            case 10:
                bench.hear(site(name), TourProgress(which, 0, 1, None, 0, 0, 0, 0), now)
            case 11:
                bench.hear(OPERATOR, draw.choice([Inspect("t"), Inspect("t", "job")]), now)
        bench.cloud.live()
        bench.cloud.wake_at()
    for cut in range(len(bench.records)):
        assert bench.replayed(cut).snapshot() == bench.cloud.snapshot()


def _closed(work: CloseRound) -> RoundClosed:
    report = RoundReport(work.job.round, 0.5, 1.0, 2, 2, 0, 0, 1.0, {})
    return RoundClosed(work.job.name, {"model": MODEL}, {"model": MODEL}, (), report)
