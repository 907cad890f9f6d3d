"""Tours in waves: all devices at once, merged at the edge server, with a restart at any point."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from hierarchy.edge.gate import Failed, Passed, Wrap
from hierarchy.edge.merge import Merged, WaveMerge
from hierarchy.edge.records import TourEnded, VisitIssued, VisitKept, VisitMissed, WaveMerged
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
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.messages import (
    Accepted,
    Birth,
    Cancel,
    Declined,
    Discarded,
    Prepare,
    Progress,
    Tour,
    TourAccepted,
    TourCancel,
    Toured,
    TourProgress,
    Visit,
    Visited,
)
from sojourn.protocol.wire import Epoch, HopEnd, HopEnds, VisitReport
from sojourn.randomness import derive
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
from tests.sojourn.store.replays import sends
from tests.there import there

SAMPLES = {"a": 30, "b": 50, "c": 20, "s": 7}


def wave_tour(hops=("a", "b"), merges=2, weighting="samples", **how) -> Tour:
    return msgspec.structs.replace(tour(hops, **how), merges=merges, weighting=weighting)


class Waves(Bench):
    """A bench that answers for devices in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, Visit] = {}
        self.works: list[StartWork] = []
        self.restart: list[Any] = []

    def handle(self, event, now=0.0):
        effects = super().handle(event, now)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Visit):
                self.asked[effect.to.name] = effect.message
            elif isinstance(effect, StartWork):
                self.works.append(effect)
        return effects

    def answers(self, name: str, now=0.0, samples=None, norm=1.0):
        """Let a device's result be fetched, checked and kept."""
        visit = self.asked[name].id
        ref = result(f"{name}{visit.hop}")
        count = SAMPLES[name] if samples is None else samples
        self.receive(device(name), Visited(visit, {"model": ref}, count, {}), now)
        self.handle(Pulled(ref.digest), now)
        return self.handle(WorkDone(self.work, Passed({"model": ref}, {"model": ref}, norm)), now)

    def declines(self, name: str, now=0.0):
        return self.receive(device(name), Declined(self.asked[name].id, "hot", ""), now)

    def merges(self, word: str, now=0.0):
        """Merge the wave's models."""
        assert isinstance(self.works[-1].work, WaveMerge)
        ref = result(word)
        return self.handle(WorkDone(self.works[-1].key, Merged({"model": ref}, {"model": ref})), now)


def merge_in(effects) -> WaveMerge:
    (do,) = [effect for effect in effects if isinstance(effect, StartWork)]
    assert isinstance(do.work, WaveMerge)
    return do.work


def test_two_waves_run_from_order_to_result() -> None:
    bench = Waves()
    effects = bench.take(wave_tour())
    assert records(effects) == [VisitIssued("job/1/0", "a", 0), VisitIssued("job/1/0", "b", 1)]
    first = sends(effects, Visit)
    assert [it.id for it in first] == [visit_id(0, (1, 1)), visit_id(1, (1, 2))]
    assert [it.seed for it in first] == [derive(5, "a", 0), derive(5, "b", 0)]
    assert [(it.vectors, it.earlier) for it in first] == [({"model": MODEL}, 0)] * 2

    effects = bench.answers("b")
    assert isinstance(effects[0].record, VisitKept)
    assert (effects[0].sync, effects[0].blobs) == (True, (result("b1").digest,))
    assert effects[0].record.wire_vectors == {}
    assert effects[1] == Send(device("b"), Accepted(visit_id(1, (1, 2))))
    assert sends(effects, Visit) == []
    assert bench.edge.state.tours["job/1/0"].vectors == {"model": MODEL}
    assert result("b1").digest in bench.edge.live()
    assert sends(bench.receive(device("a"), Progress(visit_id(0), "training", 1, 5)), Prepare) == []

    work = merge_in(bench.answers("a"))
    assert work == WaveMerge(KIT, (result("a0"), result("b1")), (30.0, 50.0), TASK)
    effects = bench.merges("m0")
    assert effects[0] == Append(
        WaveMerged("job/1/0", {"model": result("m0")}, {"model": result("m0")}),
        sync=True,
        blobs=(result("m0").digest,),
    )
    second = sends(effects, Visit)
    assert [it.id for it in second] == [visit_id(2, (1, 3)), visit_id(3, (1, 4))]
    assert [it.seed for it in second] == [derive(5, "a", 1), derive(5, "b", 1)]
    assert [(it.vectors, it.earlier) for it in second] == [({"model": result("m0")}, 2)] * 2
    assert not {result("a0").digest, result("b1").digest} & bench.edge.live()

    bench.answers("a")
    merge_in(bench.answers("b"))
    effects = bench.merges("m1")
    (toured,) = sends(effects, Toured)
    assert (toured.vectors, toured.samples) == ({"model": result("m1")}, 80)
    assert any(isinstance(record, TourEnded) for record in records(effects))
    (kept,) = [effect.data for effect in effects if isinstance(effect, StoreBlob)]
    reports = unpack_blob(kept, list[VisitReport])
    assert [(it.device, it.hop, it.samples) for it in reports] == [
        ("b", 1, 50),
        ("a", 0, 30),
        ("a", 2, 30),
        ("b", 3, 50),
    ]
    bench.receive(CLOUD, TourAccepted(tour_id()))
    assert bench.edge.live() == set()
    assert bench.edge.wake_at() is None


def test_models_are_merged_by_samples_or_uniformly() -> None:
    for weighting, weights in (("samples", (30.0, 20.0)), ("uniform", (1.0, 1.0, 1.0))):
        bench = Waves()
        bench.take(wave_tour(("a", "b", "c"), weighting=weighting))
        bench.answers("c")
        bench.answers("b", samples=0)
        work = merge_in(bench.answers("a"))
        assert work.weights == weights
        assert [it == result("b1") for it in work.models].count(True) == (weighting == "uniform")


def test_weight_of_one_device_is_capped_in_a_wave() -> None:
    bench = Waves()
    bounds = TourBounds(most_share=0.5, most_samples=1000)
    bench.take(msgspec.structs.replace(wave_tour(("a", "b", "c", "s")), bounds=bounds))
    for name, samples in (("a", 30), ("b", 2**50), ("c", 20)):
        bench.answers(name, samples=samples)
    assert merge_in(bench.answers("s", samples=10)).weights == (30.0, 60.0, 20.0, 10.0)


def test_lost_visit_is_skipped_and_repeated_in_the_next_wave() -> None:
    bench = Waves()
    bench.take(wave_tour(("a", "b", "c"), merges=3, lease=60.0))
    bench.answers("b", 10.0)
    assert sends(bench.declines("c", 11.0), Visit) == []
    effects = bench.handle(TimerFired(), 60.0)
    assert Send(device("a"), Cancel(visit_id(0))) in effects
    assert merge_in(effects).models == (result("b1"),)
    effects = bench.merges("m0", 61.0)
    assert [it.id.hop for it in sends(effects, Visit)] == [3, 4, 5]
    assert [it.earlier for it in sends(effects, Visit)] == [1, 1, 1]
    # Every visit of the second wave is lost: the model and the tour's sample count stay.
    for name in "abc":
        effects = bench.declines(name, 62.0)
    assert not any(isinstance(effect, StartWork) for effect in effects)
    assert WaveMerged("job/1/0", {}, {}) in records(effects)
    assert [it.vectors["model"] for it in sends(effects, Visit)] == [result("m0")] * 3
    assert [it.id.hop for it in sends(effects, Visit)] == [6, 7, 8]
    for name in "abc":
        effects = bench.declines(name, 63.0)
    (toured,) = sends(effects, Toured)
    assert (toured.vectors, toured.samples) == ({"model": result("m0")}, 50)


def test_tour_without_results_returns_no_model() -> None:
    bench = Waves()
    bench.take(wave_tour(merges=2))
    for _ in range(2):
        bench.declines("a")
        effects = bench.declines("b")
    (toured,) = sends(effects, Toured)
    assert (toured.vectors, toured.samples) == ({}, 0)


def test_gate_rejection_leaves_other_results_alone() -> None:
    bench = Waves()
    bench.take(wave_tour())
    bench.receive(device("a"), Visited(visit_id(0), {"model": result("a0")}, 30, {}))
    bench.handle(Pulled(result("a0").digest))
    effects = bench.handle(WorkDone(bench.work, Failed("not finite")))
    assert Send(device("a"), Discarded(visit_id(0), "by edge server e, because not finite")) in effects
    assert merge_in(bench.answers("b")).models == (result("b1"),)


def test_lost_visit_is_retried_under_a_new_number() -> None:
    bench = Waves()
    bench.take(wave_tour(on_lost_visit="retry", retries=1))
    bench.answers("b")
    (again,) = sends(bench.declines("a"), Visit)
    assert (again.id, again.seed, again.earlier) == (visit_id(0, (1, 3)), derive(5, "a", 0), 0)
    assert merge_in(bench.declines("a")).models == (result("b1"),)


def test_spare_replaces_a_device_for_one_wave() -> None:
    bench = Waves()
    bench.take(wave_tour(spares=("s",), on_lost_visit="swap"))
    (spare,) = sends(bench.declines("a"), Visit)
    assert (spare.id, spare.seed) == (visit_id(0, (1, 3)), derive(5, "s", 0))
    bench.answers("s")
    assert merge_in(bench.answers("b")).weights == (7.0, 50.0)
    bench.merges("m0")
    assert bench.asked["a"].id == visit_id(2, (1, 4))
    assert sends(bench.declines("b"), Visit)[0].id == visit_id(3, (1, 6))
    assert bench.asked["s"].id.hop == 3
    bench.answers("s")
    bench.answers("a")
    assert sends(bench.merges("m1"), Toured)[0].samples == 37


def test_stale_attempt_is_repeated_in_a_wave() -> None:
    bench = Waves()
    bench.take(wave_tour(on_lost_visit="skip"))
    effects = bench.receive(device("b"), Declined(visit_id(1, (1, 2)), "stale", ""))
    assert [it.id for it in sends(effects, Visit)] == [visit_id(1, (1, 3))]


def test_gate_uses_norms_of_earlier_waves_only() -> None:
    bench = Waves()
    bench.take(wave_tour())
    bench.answers("b", norm=4.0)
    bench.answers("a", norm=2.0)
    assert [do.work.norms for do in bench.works[:2]] == [(1.0,), (1.0,)]
    bench.merges("m0")
    bench.answers("a")
    # The second device has two batches of samples, so that its norm is over two steps.
    assert bench.works[-1].work.norms == (1.0, 4.0 / math.sqrt(2), 2.0)
    assert bench.works[-1].work.checkpoint == {"model": result("m0")}


def test_each_device_has_its_own_lease() -> None:
    bench = Waves()
    bench.take(wave_tour(lease=60.0))
    bench.edge.on_traffic(device("b"), 10, 50.0, sign_of_life=True)
    lost = [it.report.device for it in records(bench.handle(TimerFired(), 60.0)) if isinstance(it, VisitMissed)]
    assert lost == ["a"]
    assert not any(isinstance(it, VisitMissed) for it in records(bench.handle(TimerFired(), 109.0)))
    assert there(bench.edge.wake_at()) <= 110
    lost = [it.report.device for it in records(bench.handle(TimerFired(), 110.0)) if isinstance(it, VisitMissed)]
    assert lost == ["b"]


def test_progress_covers_the_whole_tour() -> None:
    bench = Waves()
    bench.take(wave_tour(("a", "b", "c")))
    (report,) = sends(bench.handle(TimerFired(), 1.0), TourProgress)
    assert report == TourProgress(tour_id(), 0, 6, None, 0, 0, 0, 0, HopEnds((), 2))
    bench.edge.on_traffic(device("b"), 10, 2.0, sign_of_life=True)
    (report,) = sends(bench.receive(device("b"), Progress(visit_id(1, (1, 2)), "training", 3, 9), 2.0), TourProgress)
    assert report == TourProgress(tour_id(), 0, 6, "b", 3, 9, 0, 10, HopEnds((), 2))
    (report,) = sends(bench.answers("b", 3.0), TourProgress)
    assert report == TourProgress(tour_id(), 1, 6, None, 0, 0, 0, 10, HopEnds((HopEnd(1, "b", "done"),), 2))
    bench.declines("c", 4.0)
    bench.answers("a", 5.0)
    report = sends(bench.merges("m0", 6.0), TourProgress)[-1]
    assert report == TourProgress(tour_id(), 3, 6, None, 0, 0, 1, 10, HopEnds((), 2))  # a new wave


def test_wave_waits_for_a_device_busy_with_another_tour() -> None:
    bench = Waves()
    bench.take(tour(("b",), number=1))
    effects = bench.take(wave_tour())
    assert [it.id for it in sends(effects, Visit)] == [visit_id(0)]
    bench.answers("a")
    effects = bench.receive(device("b"), Declined(visit_id(0, number=1), "hot", ""))
    assert [it.id for it in sends(effects, Visit)] == [visit_id(1, (1, 2))]
    assert merge_in(bench.answers("b")).models == (result("a0"), result("b1"))


def test_restarted_device_gets_its_own_visit_again() -> None:
    bench = Waves()
    bench.take(wave_tour())
    (again,) = sends(bench.handle(Present(device("b"), Epoch(2, b"abcdefgh"), Birth())), Visit)
    assert again == bench.asked["b"]
    assert again.id == visit_id(1, (1, 2))


def test_cancelled_wave_is_cancelled_on_all_devices() -> None:
    bench = Waves()
    bench.take(wave_tour(("a", "b", "c")))
    bench.take(tour(("b",), number=1))
    bench.answers("a")
    bench.receive(device("b"), Visited(visit_id(1, (1, 2)), {"model": result("b1")}, 5, {}))
    bench.handle(Pulled(result("b1").digest))
    bench.receive(device("c"), Visited(visit_id(2, (1, 3)), {"model": result("c2")}, 5, {}))
    effects = bench.receive(CLOUD, TourCancel(tour_id()))
    assert CancelWork(bench.work) in effects
    assert [it.visit.hop for it in sends(effects, Cancel)] == [1, 2]
    assert [it.id for it in sends(effects, Visit)] == [visit_id(0, number=1)]
    assert bench.handle(WorkDone(bench.work, Passed({"model": result("b1")}, {}, 1.0))) == []
    assert bench.handle(Pulled(result("c2").digest)) == []
    late = Visited(visit_id(0), {"model": result("a0")}, 30, {})
    assert sends(bench.receive(device("a"), late)) == [Accepted(visit_id(0))]
    bench.receive(CLOUD, TourCancel(tour_id(number=1)))
    assert bench.edge.live() == set()
    assert bench.edge.wake_at() is None


def test_later_attempt_replaces_a_wave_being_merged() -> None:
    bench = Waves()
    bench.take(wave_tour())
    bench.answers("a")
    bench.answers("b")
    old = bench.works[-1].key
    effects = bench.receive(CLOUD, wave_tour(attempt=2))
    assert CancelWork(old) in effects
    assert bench.handle(WorkDone(old, Merged({"model": result("m0")}, {"model": result("m0")}))) == []


def test_freed_device_does_not_start_a_second_merge() -> None:
    bench = Waves()
    bench.take(tour(("a",)))
    bench.take(wave_tour(("a",), number=1))
    bench.take(wave_tour(("b",), number=1, attempt=2))
    merge_in(bench.answers("b"))
    effects = bench.receive(CLOUD, TourCancel(tour_id(number=0)))
    assert not any(isinstance(effect, StartWork) for effect in effects)
    assert sends(bench.merges("m0"), Visit)


def restarted(bench: Waves) -> Waves:
    """Return the same edge server after kill -9."""
    twin = Waves()
    twin.records, twin.edge = list(bench.records), bench.replayed()
    for effect in twin.edge.start(0.0):
        assert isinstance(effect, Pull | Send)
    twin.handle(Pulled(KIT.digest))
    twin.restart = twin.handle(Pulled(MODEL.digest))  # what it does once it has all again
    return twin


def test_restart_during_a_wave_keeps_its_results() -> None:
    bench = Waves()
    bench.take(wave_tour(("a", "b", "c"), on_lost_visit="retry"))
    bench.answers("b")
    bench.declines("c")
    twin = restarted(bench)
    assert records(twin.restart) == []
    assert [it.id for it in sends(twin.restart, Visit)] == [visit_id(0, (1, 1)), visit_id(2, (1, 4))]
    assert sends(twin.restart, Visit) == [bench.asked["a"], bench.asked["c"]]
    late = Visited(visit_id(1, (1, 2)), {"model": result("b1")}, 50, {})
    assert sends(twin.receive(device("b"), late)) == [Accepted(visit_id(1, (1, 2)))]
    twin.answers("a")
    assert merge_in(twin.answers("c")).models == (result("a0"), result("b1"), result("c2"))


def test_restart_before_a_merge_repeats_it() -> None:
    bench = Waves()
    bench.take(wave_tour())
    bench.answers("a")
    work = merge_in(bench.answers("b"))
    twin = restarted(bench)
    assert merge_in(twin.restart) == work
    assert sends(twin.merges("m0"), Visit)[0].id == visit_id(2, (1, 3))
    twin = restarted(twin)
    assert [it.id for it in sends(twin.restart, Visit)] == [visit_id(2, (1, 3)), visit_id(3, (1, 4))]
    assert [it.earlier for it in sends(twin.restart, Visit)] == [2, 2]


def test_merge_on_a_full_disk_is_retried() -> None:
    bench = Waves()
    bench.take(wave_tour())
    bench.answers("a")
    work = merge_in(bench.answers("b"))
    bench.handle(WorkFailed(bench.works[-1].key, "disk", "no space"), 1.0)
    assert not any(isinstance(effect, Pull) for effect in bench.handle(TimerFired(), 5.9))
    assert sum(isinstance(effect, Pull) for effect in bench.handle(TimerFired(), 6.0)) == 2
    bench.handle(Pulled(KIT.digest), 6.0)
    assert merge_in(bench.handle(Pulled(MODEL.digest), 6.0)) == work
    assert sends(bench.merges("m0"), Visit)


def test_failed_merge_discards_the_wave() -> None:
    bench = Waves()
    bench.take(wave_tour())
    bench.answers("a")
    bench.answers("b")
    effects = bench.handle(WorkFailed(bench.works[-1].key, "failed", "damaged"))
    assert any(isinstance(effect, Log) and effect.level == "error" for effect in effects)
    assert [it.id.hop for it in sends(effects, Visit)] == [2, 3]
    assert [it.vectors["model"] for it in sends(effects, Visit)] == [MODEL] * 2


def test_compressed_wave_is_sent_and_wrapped_with_job_encoding() -> None:
    bench = Waves()
    bench.take(wave_tour(("a",), encoding="int8"))
    exact, handed = result("m0"), result("h0", "int8")
    for word in (b"x0x0x", b"x1x1x"):
        visit, ref = bench.asked["a"], ref_of(word, "int8", delta=True)
        bench.receive(device("a"), Visited(visit.id, {"model": ref}, 30, {}))
        bench.handle(Pulled(ref.digest))
        assert bench.works[-1].work.checkpoint == ({"model": exact} if visit.id.hop else {"model": MODEL})
        passed = Passed({"model": result("a")}, {"model": handed}, 1.0)
        assert merge_in(bench.handle(WorkDone(bench.work, passed))).models == (result("a"),)
        effects = bench.handle(WorkDone(bench.work, Merged({"model": exact}, {"model": handed})))
    assert bench.asked["a"].vectors == {"model": handed}
    (wrap,) = [effect.work for effect in effects if isinstance(effect, StartWork)]
    assert wrap == Wrap(KIT, MODEL, {"model": exact}, msgspec.structs.replace(TASK, encoding="int8"))
    (toured,) = sends(bench.handle(WorkFailed(bench.work, "disk", "no space")), Toured)
    assert toured.vectors == {"model": exact}


@pytest.mark.parametrize("change", [{"objective": Scaffold()}, {"kind": "estimate"}])
def test_unmergeable_task_is_rejected(change) -> None:
    bench = Waves()
    whole = wave_tour()
    (warning,) = bench.receive(CLOUD, msgspec.structs.replace(whole, task=msgspec.structs.replace(TASK, **change)))
    assert isinstance(warning, Log)
    assert warning.level == "warning"
    assert bench.edge.state.tours == {}


def test_duplicate_device_is_visited_twice_and_weighed_once() -> None:
    bench = Waves()
    bench.take(wave_tour(("a", "a"), merges=1))
    assert bench.asked["a"].id.hop == 0
    (second,) = sends(bench.answers("a"), Visit)
    assert second.id.hop == 1
    bench.answers("a")
    assert sends(bench.merges("m0"), Toured)[0].samples == 30


@pytest.mark.parametrize("seed", range(25))
def test_random_event_sequences_replay_identically(seed) -> None:
    draw = random.Random(seed)
    bench = Waves()
    for step in range(200):
        number, name = draw.randint(0, 1), draw.choice("abs")
        tours = bench.edge.state.tours.values()
        current = [t.visit(hop) for t in tours for hop, at in t.visiting().items() if at == name]
        where = draw.choice([visit_id(draw.randint(0, 3), (1, draw.randint(1, 9)), number), *current * 6])
        work = draw.choice(bench.works[-3:]) if bench.works else StartWork("none", None)
        merged = isinstance(work.work, WaveMerge)
        ref = result(f"m{step}")
        good = Merged({"model": ref}, {"model": ref}) if merged else Passed({"model": ref}, {"model": ref}, 1.0)
        whole = wave_tour(
            ("a", "b"),
            draw.choice([0, 2, 3]),
            spares=("s",),
            attempt=draw.choice([1, 1, 1, 2]),
            number=number,
            on_lost_visit=draw.choice(["skip", "retry", "swap"]),
        )
        events = [
            Received(CLOUD, EPOCH, whole),
            Pulled(KIT.digest),
            Pulled(MODEL.digest),
            *[Received(device(name), EPOCH, Visited(where, {"model": result(f"{name}{where.hop}")}, 5, {}))] * 3,
            *[Pulled(result(f"{name}{where.hop}").digest)] * 3,
            *[WorkDone(work.key, good)] * 3,
            Received(device(name), EPOCH, Progress(where, "training", 1, 2)),
            Received(device(name), EPOCH, Declined(where, draw.choice(["hot", "stale"]), "")),
            WorkDone(work.key, Failed("no")) if not merged else LinkUp(),
            WorkFailed(work.key, draw.choice(["failed", "disk"]), "no"),
            TimerFired(),
            PullFailed(result(f"{name}{where.hop}").digest, "gone"),
            PullFailed(MODEL.digest, "disk"),
            Present(device(name), Epoch(draw.randint(1, 3), bytes(8)), draw.choice(PRESENCES)),
        ]
        if draw.random() < 0.02:
            events = [Received(CLOUD, EPOCH, draw.choice(DISMISSALS)(tour_id(2, number)))]
        bench.handle(draw.choice(events), step * 2.0)
        bench.edge.live()
        for key, held in bench.edge.state.tours.items():
            running = bench.edge.site.running[key]
            assert held.ended_visits <= held.visits
            assert running.visits.keys() <= held.visiting().keys()
            assert running.state == "gathering" or running.visits.keys() == held.visiting().keys()
            assert set(held.open_visits) | set(held.results) <= set(held.wave)
            for hop in running.visits:
                assert bench.edge.site.at[there(held.open_visits[hop].device)] == (key, hop)
    for cut in range(0, len(bench.records), 3):
        assert bench.replayed(cut).snapshot() == bench.edge.snapshot()
