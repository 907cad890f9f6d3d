"""The edge server as a state machine: tours led hop by hop, and a restart at any point gives the same state."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from hierarchy.edge.gate import Check, Failed, Passed, Wrap, Wrapped
from hierarchy.edge.records import TOURS_REMEMBERED, TourEnded, VisitIssued, VisitKept, VisitMissed
from hierarchy.edge.server import EdgeServer
from hierarchy.edge.visits import MAX_STALE
from sojourn.node.machine import (
    Append,
    CancelWork,
    LinkUp,
    Log,
    Present,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Send,
    StartWork,
    StoreBlob,
    TimerFired,
    WorkDone,
    WorkFailed,
)
from sojourn.parts import Scaffold, TourBounds
from sojourn.protocol.messages import (
    Accepted,
    Birth,
    Cancel,
    Death,
    Declined,
    Discarded,
    Prepare,
    Progress,
    Roster,
    RosterAsk,
    RosterSeen,
    Tour,
    TourAccepted,
    TourCancel,
    TourDiscarded,
    Toured,
    TourProgress,
    Visit,
    Visited,
)
from sojourn.protocol.task import OF_MODELS
from sojourn.protocol.wire import Epoch, Offer
from sojourn.store.blobs import ref_of
from tests.hierarchy.edge.site_bench import (
    CLOUD,
    DISMISSALS,
    EPOCH,
    KIT,
    MODEL,
    PRESENCES,
    Bench,
    device,
    records,
    result,
    tour,
    tour_id,
    visit_id,
)
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.store.replays import sends, without_steps
from tests.there import there


def test_tour_runs_from_order_to_result() -> None:
    bench = Bench()
    effects = bench.receive(CLOUD, tour())
    assert [type(effect) for effect in effects if type(effect).__name__ != "Log"] == [Append, Send, Pull, Pull]
    assert sends(effects) == [TourProgress(tour_id(), 0, 2, None, 0, 0, 0, 0)]
    assert bench.handle(Pulled(KIT.digest)) == []
    effects = bench.handle(Pulled(MODEL.digest))
    (first,) = sends(effects, Visit)
    assert first.id == visit_id(0, (1, 1))
    assert first.vectors == {"model": MODEL}
    assert records(effects) == [VisitIssued("job/1/0", "a")]
    (prepare,) = sends(bench.receive(device("a"), Progress(visit_id(0), "training", 1, 5)), Prepare)
    assert prepare == Prepare("job", KIT, TASK)
    (check,) = bench.visited("a", visit_id(0))
    assert isinstance(check.work, Check)
    assert check.work.norms == (1.0,)
    effects = bench.passes("a")
    assert isinstance(effects[0].record, VisitKept)
    assert (effects[0].sync, effects[0].blobs) == (True, (result("a").digest,))
    assert effects[1] == Send(device("a"), Accepted(visit_id(0)))
    (second,) = sends(effects, Visit)
    assert second.id == visit_id(1, (1, 2))
    assert second.vectors == {"model": result("a")}
    assert second.seed != first.seed
    (check,) = bench.visited("b", visit_id(1, (1, 2)))
    assert check.work.norms == (1.0, 1.0)
    effects = bench.passes("b")
    kinds = [type(effect).__name__ for effect in effects if isinstance(effect, Append | StoreBlob | Send)]
    assert kinds == ["Append", "Send", "StoreBlob", "Append", "Send"]
    (toured,) = sends(effects, Toured)
    assert (toured.vectors, toured.samples) == ({"model": result("b")}, 10)
    ended = next(e for e in effects if isinstance(e, Append) and isinstance(e.record, TourEnded))
    assert ended.sync
    assert set(ended.blobs) == {result("b").digest, toured.reports.digest}
    assert records(bench.receive(CLOUD, TourAccepted(tour_id())))
    assert bench.edge.state.tours == {}
    assert bench.edge.site.running == {}
    assert bench.edge.live() == set()


CONTROL = ref_of(b"cntrl", "float32")


def scaffold_tour(kind="train", hops=("a", "b", "c")) -> Tour:
    task = msgspec.structs.replace(TASK, objective=Scaffold(), kind=kind)
    return msgspec.structs.replace(tour(hops), task=task, vectors={"model": MODEL, "control": CONTROL})


def test_extra_vector_sums_go_up_and_never_to_a_device() -> None:
    bench = Bench()
    bench.take(scaffold_tour())
    visits = sends(bench.handle(Pulled(CONTROL.digest)), Visit)
    for number, name in enumerate("abc"):
        (visit,) = visits
        start = result("abc"[number - 1]) if number else MODEL
        assert visit.vectors == {"model": start, "control": CONTROL}
        assert visit.earlier == number
        extra, total = (ref_of(f"{word}{name}".ljust(5).encode(), "float32") for word in ("x", "sum"))
        answer = Visited(visit.id, {"model": result(name), "control_delta": extra}, 5, {})
        pulls = bench.receive(device(name), answer)
        assert [effect.ref for effect in pulls] == [result(name), extra]
        assert bench.handle(Pulled(extra.digest)) == []
        assert extra.digest in bench.edge.live()
        (check,) = bench.handle(Pulled(result(name).digest))
        assert check.work.result == answer.vectors
        sums = {"control_delta": ref_of(f"sum{'abc'[number - 1]}".ljust(5).encode(), "float32")} if number else {}
        assert check.work.checkpoint == {"model": start, **sums}
        passed = Passed({"model": result(name), "control_delta": total}, {"model": result(name)}, 1.0)
        effects = bench.handle(WorkDone(bench.work, passed))
        assert set(effects[0].blobs) == {result(name).digest, total.digest}
        visits = sends(effects, Visit)
    (toured,) = sends(effects, Toured)
    assert toured.vectors == {"model": result("c"), "control_delta": ref_of(b"sumc ", "float32")}


def test_lost_visit_is_not_counted_as_an_earlier_one() -> None:
    bench = Bench()
    (first,) = sends(bench.take(tour(("a", "b", "a"))), Visit)
    (second,) = sends(bench.receive(device("a"), Declined(visit_id(0), "hot", "")), Visit)
    bench.visited("b", visit_id(1, (1, 2)))
    (third,) = sends(bench.passes("b"), Visit)
    assert [it.earlier for it in (first, second, third)] == [0, 0, 1]
    (again,) = sends(bench.handle(Present(device("a"), Epoch(2, b"abcdefgh"), Birth())), Visit)
    assert again == third


def test_unchanged_model_is_returned_unless_estimate_made_none() -> None:
    bench = Bench()
    bench.take(tour(("a",)))
    bench.receive(device("a"), Visited(visit_id(0), {"model": MODEL}, 5, {}))
    bench.handle(Pulled(MODEL.digest))
    (toured,) = sends(bench.handle(WorkDone(bench.work, Passed({"model": MODEL}, {"model": MODEL}, 0.0))), Toured)
    assert toured.vectors == {"model": MODEL}
    bench = Bench()
    estimate = msgspec.structs.replace(TASK, kind="estimate")
    bench.take(msgspec.structs.replace(tour(("a",)), task=estimate))
    (check,) = bench.receive(device("a"), Visited(visit_id(0), {}, 5, {}, (0.5,)))
    (toured,) = sends(bench.handle(WorkDone(check.key, Passed({}, {}, 0.0))), Toured)
    assert toured.vectors == {}


def test_model_made_by_an_estimate_is_not_passed_on() -> None:
    bench = Bench()
    bench.take(msgspec.structs.replace(tour(), task=msgspec.structs.replace(TASK, kind="estimate")))
    bench.visited("a", visit_id(0))
    (second,) = sends(bench.passes("a"), Visit)
    assert second.vectors == {"model": MODEL}


def test_freed_device_starts_a_queued_tour_only_with_all_inputs() -> None:
    bench = Bench()
    bench.take(tour(("a",)))
    bench.take(tour(("a",), number=1))
    bench.receive(CLOUD, tour(("a",), number=1, attempt=2))
    assert sends(bench.receive(CLOUD, TourCancel(tour_id(number=0))), Visit) == []
    bench.handle(Pulled(KIT.digest))
    (visit,) = sends(bench.handle(Pulled(MODEL.digest)), Visit)
    assert visit.id == visit_id(0, (2, 1), 1)


def test_results_wait_until_inputs_are_fetched_after_restart() -> None:
    bench = Bench()
    bench.take(tour())
    twin = bench.replayed()
    twin.start(0.0)
    for message in (Visited(visit_id(0), {"model": result("a")}, 5, {}), Declined(visit_id(0), "hot", "")):
        assert twin.handle(Received(device("a"), EPOCH, message), 0.0) == []
    twin.handle(Pulled(KIT.digest), 0.0)
    twin.handle(Pulled(MODEL.digest), 0.0)
    answer = Visited(visit_id(0), {"model": result("a")}, 5, {})
    effects = without_steps(twin.handle(Received(device("a"), EPOCH, answer), 0.0))
    assert [type(effect) for effect in effects] == [Pull]


def test_repeated_tour_order_is_answered_with_progress() -> None:
    bench = Bench()
    bench.take(tour())
    before = bench.edge.snapshot()
    for _ in range(2):
        effects = bench.receive(CLOUD, tour())
        assert [type(message) for message in sends(effects)] == [TourProgress]
        assert bench.edge.snapshot() == before


def test_later_attempt_replaces_a_tour_and_older_is_ignored() -> None:
    bench = Bench()
    bench.take(tour(attempt=2))
    assert bench.receive(CLOUD, tour(attempt=1)) == []
    effects = bench.receive(CLOUD, tour(("b",), attempt=3))
    assert Send(device("a"), Cancel(visit_id(0, (2, 1)))) in effects
    assert bench.edge.state.tours["job/1/0"].route == ["b"]
    bench.receive(CLOUD, TourCancel(tour_id(3)))
    for attempt in (1, 2, 3):
        assert bench.receive(CLOUD, tour(attempt=attempt)) == []
    assert bench.receive(CLOUD, tour(attempt=4))


@pytest.mark.parametrize("message", [TourCancel, TourAccepted, lambda tour: TourDiscarded(tour, "late")])
def test_old_settlement_does_not_end_a_newer_attempt(message) -> None:
    bench = Bench()
    bench.take(tour(attempt=2))
    assert bench.receive(CLOUD, message(tour_id(1))) == []
    assert bench.receive(CLOUD, message(tour_id(2)))
    assert bench.edge.state.tours == {}
    assert bench.receive(CLOUD, message(tour_id(2))) == []


@pytest.mark.parametrize(
    ("vectors", "words"),
    [
        ({"model": result("a"), "junk": result("b")}, "unexpected vector 'junk'"),
        ({"model": ref_of(bytes(1_000_000), "float32")}, "1000000 bytes of float32"),
        ({"model": result("a", "int8")}, "5 bytes of int8"),
    ],
)
def test_invalid_result_is_not_fetched(vectors, words) -> None:
    bench = Bench()
    bench.take(tour())
    effects = bench.receive(device("a"), Visited(visit_id(0), vectors, 5, {}))
    assert not [effect for effect in effects if isinstance(effect, Pull)]
    (missed,) = [record for record in records(effects) if isinstance(record, VisitMissed)]
    assert words in missed.report.reason
    assert sends(effects, Discarded)[0].visit == visit_id(0)


def test_outdated_results_are_settled_at_once() -> None:
    bench = Bench()
    bench.take(tour())
    others = (("a", visit_id(0, (1, 2))), ("b", visit_id(0)), ("a", visit_id(1)), ("x", visit_id(0, number=9)))
    for sender, where in others:
        assert [type(m) for m in sends(bench.receive(device(sender), Visited(where, {}, 1, {})))] == [Discarded]
        assert sends(bench.receive(device(sender), Progress(where, "training", 0, 0))) == [Cancel(where)]
        assert bench.receive(device(sender), Declined(where, "hot", "")) == [Send(device(sender), Cancel(where))]
    bench.visited("a", visit_id(0))
    bench.passes("a")
    answer = Visited(visit_id(0), {"model": result("a")}, 5, {})
    assert sends(bench.receive(device("a"), answer)) == [Accepted(visit_id(0))]
    late = Progress(visit_id(0), "training", 0, 0)  # a cancel could overtake what was accepted
    assert sends(bench.receive(device("a"), late)) == [Accepted(visit_id(0))]
    bench.receive(CLOUD, TourCancel(tour_id()))
    assert sends(bench.receive(device("a"), answer)) == [Accepted(visit_id(0))]


def test_duplicate_result_is_checked_once() -> None:
    bench = Bench()
    bench.take(tour())
    bench.visited("a", visit_id(0))
    assert bench.receive(device("a"), Visited(visit_id(0), {"model": result("a")}, 5, {})) == []
    assert bench.handle(Pulled(result("a").digest)) == []


@pytest.mark.parametrize(
    ("policy", "spares", "then"),
    [
        ({"on_lost_visit": "skip"}, ("s",), "b"),
        ({"on_lost_visit": "retry"}, ("s",), "a"),
        ({"on_lost_visit": "retry", "retries": 0}, ("s",), "b"),
        ({"on_lost_visit": "swap"}, ("s",), "s"),
        ({"on_lost_visit": "swap"}, (), "b"),
    ],
)
@pytest.mark.parametrize("how", ["lease", "declined", "gate", "gone"])
def test_lost_visit_is_handled_by_policy(policy, spares, then, how) -> None:
    bench = Bench()
    bench.take(tour(spares=spares, lease=60.0, **policy))
    match how:
        case "lease":
            assert there(bench.edge.wake_at()) <= 60
            effects = bench.handle(TimerFired(), 60.0)
            assert Send(device("a"), Cancel(visit_id(0))) in effects
        case "declined":
            effects = bench.receive(device("a"), Declined(visit_id(0), "hot", "81"))
        case "gate":
            bench.visited("a", visit_id(0))
            effects = bench.handle(WorkDone(bench.work, Failed("not finite")))
            assert Send(device("a"), Discarded(visit_id(0), "by edge server e, because not finite")) in effects
        case "gone":
            bench.receive(device("a"), Visited(visit_id(0), {"model": result("a")}, 5, {}))
            effects = bench.handle(PullFailed(result("a").digest, "gone"))
    missed = next(record for record in records(effects) if isinstance(record, VisitMissed))
    assert missed.report.device == "a"
    visit = sends(effects, Visit)[-1]
    assert [e.to.name for e in effects if isinstance(e, Send) and isinstance(e.message, Visit)][-1] == then
    assert visit.id.attempt == (1, 2)
    assert visit.vectors == {"model": MODEL}
    issued = next(at for at, e in enumerate(effects) if isinstance(e, Append) and isinstance(e.record, VisitIssued))
    assert effects.index(next(e for e in effects if isinstance(e, Send) and e.message is visit)) > issued


def test_traffic_renews_the_lease_and_silence_ends_it() -> None:
    bench = Bench()
    bench.take(tour(lease=60.0), 0.0)
    bench.edge.on_traffic(device("a"), 10, 50.0, sign_of_life=True)
    bench.edge.on_traffic(device("b"), 10, 100.0, sign_of_life=True)
    bench.edge.on_traffic(device("a"), 10, 100.0, sign_of_life=False)
    assert not any(isinstance(r, VisitMissed) for r in records(bench.handle(TimerFired(), 109.0)))
    assert any(isinstance(r, VisitMissed) for r in records(bench.handle(TimerFired(), 110.0)))


def test_stale_attempt_is_repeated_up_to_a_limit() -> None:
    bench = Bench()
    bench.take(tour(on_lost_visit="skip"))
    for number in range(1, MAX_STALE + 1):
        effects = bench.receive(device("a"), Declined(visit_id(0, (1, number)), "stale", ""))
        assert [v.id for v in sends(effects, Visit)] == [visit_id(0, (1, number + 1))]
    effects = bench.receive(device("a"), Declined(visit_id(0, (1, MAX_STALE + 1)), "stale", ""))
    assert [v.id.hop for v in sends(effects, Visit)] == [1]


def test_decline_during_the_check_cancels_it() -> None:
    bench = Bench()
    bench.take(tour())
    bench.visited("a", visit_id(0))
    work = bench.work
    effects = bench.receive(device("a"), Declined(visit_id(0), "failed", ""))
    assert CancelWork(work) in effects
    assert bench.handle(WorkDone(work, Passed({"model": result("a")}, {"model": result("a")}, 1.0))) == []
    assert bench.edge.state.tours["job/1/0"].vectors == {"model": MODEL}


def test_work_of_an_old_attempt_is_ignored() -> None:
    bench = Bench()
    bench.take(tour())
    bench.visited("a", visit_id(0))
    old = bench.work
    bench.take(tour(attempt=2))
    bench.visited("a", visit_id(0, (2, 1)))
    assert bench.work != old
    assert bench.handle(WorkDone(old, Passed({"model": result("x")}, {}, 1.0))) == []
    assert bench.passes("a")


def test_failed_compression_sends_the_model_uncompressed() -> None:
    bench = Bench()
    bench.take(tour(("a",), encoding="int8"))
    bench.visited("a", visit_id(0), encoding="int8")
    (wrap,) = [e for e in bench.passes("a") if isinstance(e, StartWork)]
    assert isinstance(wrap.work, Wrap)
    (toured,) = sends(bench.handle(WorkFailed(wrap.key, "disk", "no space")), Toured)
    assert toured.vectors == {"model": result("a")}


def test_result_is_wrapped_if_the_job_compresses() -> None:
    bench = Bench()
    bench.take(tour(("a",), encoding="int8"))
    bench.visited("a", visit_id(0), encoding="int8")
    bench.passes("a")
    small = ref_of(b"small", "int8", delta=True)
    (toured,) = sends(bench.handle(WorkDone(bench.work, Wrapped({"model": small}))), Toured)
    assert toured.vectors == {"model": small}


def test_tour_without_results_returns_no_model() -> None:
    bench = Bench()
    bench.take(tour(("a",)))
    (toured,) = sends(bench.receive(device("a"), Declined(visit_id(0), "hot", "")), Toured)
    assert (toured.vectors, toured.samples) == ({}, 0)


def test_tour_waits_for_a_device_busy_with_another_tour() -> None:
    bench = Bench()
    bench.take(tour(("a",)))
    assert sends(bench.take(tour(("a", "b"), number=1)), Visit) == []
    bench.take(tour(("a",), number=2))
    bench.visited("a", visit_id(0))
    visits = sends(bench.passes("a"), Visit)
    assert [visit.id for visit in visits] == [visit_id(0, number=1)]
    visits = sends(bench.receive(CLOUD, TourCancel(tour_id(number=1))), Visit)
    assert [visit.id for visit in visits] == [visit_id(0, number=2)]


def test_freed_device_does_not_disturb_a_rerouted_tour() -> None:
    bench = Bench()
    bench.take(tour(("a",)))
    bench.take(tour(("a",), number=1))
    bench.take(tour(("b",), number=1, attempt=2))
    bench.visited("b", visit_id(0, (2, 1), 1))
    check = bench.work
    bench.receive(CLOUD, TourCancel(tour_id(number=0)))
    effects = bench.handle(WorkDone(check, Passed({"model": result("b")}, {"model": result("b")}, 1.0)))
    assert sends(effects, Toured)


def test_tour_at_the_device_comes_first_after_restart() -> None:
    bench = Bench()
    bench.take(tour(("b", "a")))
    bench.take(tour(("a",), number=1))
    bench.visited("b", visit_id(0))
    bench.passes("b")
    twin = bench.replayed()
    twin.start(0.0)
    visits = [m for digest in (KIT.digest, MODEL.digest) for m in sends(twin.handle(Pulled(digest), 0.0), Visit)]
    assert [visit.id for visit in visits] == [visit_id(0, number=1)]


@pytest.mark.parametrize("ended", [False, True])
def test_restart_resumes_the_tour(ended) -> None:
    bench = Bench()
    bench.take(tour())
    bench.visited("a", visit_id(0))
    bench.passes("a")
    if ended:
        bench.visited("b", visit_id(1, (1, 2)))
        (toured,) = sends(bench.passes("b"), Toured)
    twin = bench.replayed()
    effects = twin.start(0.0)
    if ended:
        assert sends(effects, Toured) == [toured]
        assert sends(effects, TourProgress)
        assert twin.wake_at() is not None
        return
    assert [type(effect) for effect in effects] == [Pull, Pull]
    twin.handle(Pulled(KIT.digest), 0.0)
    (visit,) = sends(twin.handle(Pulled(MODEL.digest), 0.0), Visit)
    assert visit.id == visit_id(1, (1, 2))
    assert visit.vectors == {"model": result("a")}


def test_failed_fetch_is_retried_after_a_pause() -> None:
    bench = Bench()
    bench.receive(CLOUD, tour())
    bench.handle(PullFailed(MODEL.digest, "gone"), 1.0)
    assert not any(isinstance(effect, Pull) for effect in bench.handle(TimerFired(), 5.9))
    assert sum(isinstance(effect, Pull) for effect in bench.handle(TimerFired(), 6.0)) == 2


def test_restarted_device_gets_its_visit_again() -> None:
    bench = Bench()
    bench.take(tour())
    born = Present(device("a"), Epoch(2, b"abcdefgh"), Birth())
    assert [v.id for v in sends(bench.handle(born), Visit)] == [visit_id(0)]
    assert sends(bench.handle(born), Visit) == []
    bench.visited("a", visit_id(0))
    assert sends(bench.handle(Present(device("a"), Epoch(3, b"abcdefgh"), Birth())), Visit) == []


OFFER = Offer("1", "m", "r", 4, 0, ("sgd",), "npz")


def test_presence_is_logged_and_flapping_is_rate_limited() -> None:
    bench, lines = Bench(), []
    for number in range(1000):
        state, epoch = (Birth(OFFER), Death())[number % 2], Epoch(number // 2 + 1, bytes(8))
        effects = bench.edge.handle(Present(device("a"), epoch, state), number * 0.01)
        lines += [effect.text for effect in effects if isinstance(effect, Log)]
    assert lines[:2] == ["device a is online (1, m); 1 online", "device a is offline; 0 online"]
    assert len(lines) == 51  # 50 at once, then one in five seconds
    assert lines[-1].endswith("; 450 more devices went online or offline before it")
    same = Present(device("b"), Epoch(1, bytes(8)), Birth(OFFER))
    assert len(bench.edge.handle(same, 1000.0)) == 1
    assert bench.edge.handle(same, 1001.0) == []


def test_roster_is_resent_until_acknowledged() -> None:
    bench = Bench()
    bench.handle(Present(device("a"), EPOCH, Birth()), 0.0)
    bench.handle(Present(device("b"), EPOCH, Birth()), 0.1)
    assert sends(bench.handle(TimerFired(), 0.15)) == []
    (keep, ask) = bench.handle(TimerFired(), 0.2)
    assert isinstance(keep, StoreBlob)
    assert ask == Send(CLOUD, Roster(1, ref_of(keep.data), OF_MODELS))
    assert keep.digest in bench.edge.live()
    assert sends(bench.handle(TimerFired(), 1.2)) == [ask.message]
    bench.receive(CLOUD, RosterSeen(0))
    assert sends(bench.handle(LinkUp(), 2.0)) == [ask.message]
    bench.receive(CLOUD, RosterSeen(1))
    assert bench.edge.wake_at() is None
    bench.handle(Present(device("b"), EPOCH, Death()), 3.0)
    assert sends(bench.handle(TimerFired(), 3.2))[0].revision == 2
    bench.receive(CLOUD, RosterSeen(2))
    bench.receive(CLOUD, RosterAsk(), 4.0)
    assert sends(bench.handle(TimerFired(), 4.2))[0].revision == 3


def test_heartbeats_are_sent_to_the_coordinator() -> None:
    bench = Bench()
    bench.take(tour(site_lease=8.0))
    times = []
    for _ in range(3):
        times.append(min(t for it in bench.edge.site.running.values() for t in [there(it.heartbeat_at)]))
        assert sends(bench.handle(TimerFired(), times[-1]), TourProgress)
    assert times == [1, 3, 5]  # the start of the first visit is reported a second after the order


def test_progress_soon_after_a_heartbeat_waits_for_the_next() -> None:
    bench = Bench()
    bench.take(tour(("a", "b", "c")))
    running = next(iter(bench.edge.site.running.values()))
    bench.visited("a", visit_id(0), 0.5)
    assert not sends(bench.passes("a", 0.75), TourProgress)
    assert running.heartbeat_at == 1.0
    (report,) = sends(bench.handle(TimerFired(), 1.0), TourProgress)
    assert (report.hop, report.device) == (1, "b")
    assert running.heartbeat_at == 6.0
    bench.visited("b", visit_id(1, (1, 2)), 2.0)
    (report,) = sends(bench.passes("b", 2.5), TourProgress)
    assert (report.hop, report.device) == (2, "c")


def test_snapshot_field_names_are_stable() -> None:
    bench = Bench()
    bench.take(tour())
    (stored,) = msgspec.msgpack.decode(bench.edge.snapshot())["tours"].values()
    assert list(stored) == [
        "tour", "route", "spares", "vectors", "wire_vectors", "hop", "stops", "results", "attempts", "lost", "reports",
        "toured",
    ]  # fmt: skip
    assert stored["stops"] == {0: {"device": "a", "attempt": 1, "tries": 0}}


def test_remembered_tours_are_bounded() -> None:
    bench = EdgeServer("e", "c")
    for number in range(2 * TOURS_REMEMBERED):
        bench.handle(Received(CLOUD, EPOCH, tour(number=number)), 0.0)
        bench.handle(Received(CLOUD, EPOCH, TourCancel(tour_id(number=number))), 0.0)
    assert len(bench.state.fences) == TOURS_REMEMBERED
    assert bench.state.tours == {}


@pytest.mark.parametrize("seed", range(15))
def test_random_event_sequences_replay_identically(seed) -> None:
    draw = random.Random(seed)
    bench = Bench()
    for step in range(150):
        number, name = draw.randint(0, 1), draw.choice("abs")
        attempt = (draw.randint(1, 2), draw.randint(1, 3))
        where = visit_id(draw.randint(0, 1), attempt, number)
        tours = bench.edge.state.tours.values()
        current = [t.visit(hop) for t in tours for hop, at in t.visiting().items() if at == name]
        where = draw.choice([where, *current * 4])
        whole = tour(("a", "b"), ("s",), attempt[0], number, on_lost_visit=draw.choice(["skip", "retry", "swap"]))
        event = draw.choice(
            [
                Received(CLOUD, EPOCH, whole),
                Pulled(KIT.digest),
                Pulled(MODEL.digest),
                Received(device(name), EPOCH, Visited(where, {"model": result(name)}, 5, {})),
                Pulled(result(name).digest),
                Received(device(name), EPOCH, Progress(where, "training", 1, 2)),
                Received(device(name), EPOCH, Declined(where, draw.choice(["hot", "stale"]), "")),
                WorkDone(bench.work, Passed({"model": result(name)}, {"model": result(name)}, 1.0)),
                WorkDone(bench.work, Failed("no")),
                WorkFailed(bench.work, "failed", "no"),
                TimerFired(),
                LinkUp(),
                PullFailed(result(name).digest, "gone"),
                PullFailed(MODEL.digest, "disk"),
                Present(device(name), Epoch(draw.randint(1, 3), bytes(8)), draw.choice(PRESENCES)),
                Received(CLOUD, EPOCH, draw.choice(DISMISSALS)(tour_id(attempt[0], number))),
            ]
        )
        bench.handle(event, step * 10.0)
        bench.edge.live()
        for key, held in bench.edge.state.tours.items():
            assert held.hop <= len(held.route)
            assert key in bench.edge.site.running
    for cut in range(0, len(bench.records), 3):
        assert bench.replayed(cut).snapshot() == bench.edge.snapshot()


def bounded_tour(**bounds: Any) -> Tour:
    return msgspec.structs.replace(tour(lease=60.0), bounds=TourBounds(**bounds))


@pytest.mark.parametrize("fetching", [False, True])
def test_visit_deadline_is_not_renewed_by_progress(fetching: bool) -> None:
    bench = Bench()
    bench.take(bounded_tour(deadline=150.0), 0.0)
    if fetching:
        bench.receive(device("a"), Visited(visit_id(0), {"model": result("a")}, 5, {}), 10.0)
    for now in (50.0, 100.0, 149.0):
        bench.edge.on_traffic(device("a"), 1, now, sign_of_life=True)
        bench.receive(device("a"), Progress(visit_id(0), "training", 1, 5), now)
        assert not records(bench.handle(TimerFired(), now))
    effects = bench.handle(TimerFired(), 150.0)
    missed = next(record for record in records(effects) if isinstance(record, VisitMissed))
    assert (missed.report.status, missed.report.reason) == ("lost", "over its deadline of 150 s")
    visits = [it.message for it in effects if isinstance(it, Send) and isinstance(it.message, Visit)]
    assert [visit.id.hop for visit in visits] == [1]


def test_order_without_deadline_never_expires() -> None:
    bench = Bench()
    bench.take(tour(lease=60.0), 0.0)
    for now in range(0, 100_000, 50):
        bench.edge.on_traffic(device("a"), 1, float(now), sign_of_life=True)
    assert not records(bench.handle(TimerFired(), 99_999.0))


def test_device_claims_are_bounded_in_the_report() -> None:
    bench = Bench()
    bench.take(bounded_tour(most_samples=1000, usual_samples=10), 0.0)
    metrics = {f"metric-{number}": 1.0 for number in range(31)} | {"steps": 2.0**50}
    ref = result("a")
    bench.receive(device("a"), Visited(visit_id(0), {"model": ref}, 2**50, metrics, (0.5,)))
    bench.handle(Pulled(ref.digest))
    kept = next(it for it in records(bench.passes("a")) if isinstance(it, VisitKept))
    report = kept.report
    assert (report.samples, report.signature, report.metrics["steps"]) == (1000, None, 5.0)  # 160 samples in 32s
    assert len(report.metrics) <= 32


def test_rejected_result_reports_its_measurements() -> None:
    bench = Bench()
    bench.take(bounded_tour(), 0.0)
    bench.visited("a", visit_id(0))
    written = records(bench.handle(WorkDone(bench.work, Failed("no", 3.0, 2.5))))
    missed = next(it for it in written if isinstance(it, VisitMissed))
    assert (missed.report.norm, missed.report.samples) == (3.0, 0)
    assert missed.report.metrics == {"steps": 1.0, "rise": 2.5}
