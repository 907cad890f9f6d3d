"""The volatile state of tours: fast to read, and never from an earlier round."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.job_state import JobState
from coordinator.machine.job_requests import whole_view
from coordinator.machine.tours import RoundTours
from coordinator.records import TourArrived, TourGivenUp, TourMoved, TourPlan
from coordinator.rounds.orders import Leg
from coordinator.rounds.results import REPORT_BYTES
from sojourn.node.machine import Pull
from sojourn.node.pending import Outbox
from sojourn.protocol.messages import TourDiscarded, Toured, TourProgress
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import HopEnd, HopEnds, Ref, TourId
from tests.coordinator.machine.cloud_bench import Bench, site
from tests.sojourn.protocol.examples import VIEW
from tests.sojourn.store.replays import sends

TEXT = """
name = "job"
strategy = "fedavg"
tours.site_lease = 100.0
data.classes = ["a", "b"]
data.input = [4]
"""
MODEL, OTHER, REPORTS, KIT = (Ref(bytes([number]) * 32, 10) for number in range(4))


def a_job(*legs: int) -> JobState:
    tours = tuple(TourPlan(number, f"site-{number % 2}", ("d",), leg=leg) for number, leg in enumerate(legs))
    return JobState("job", TEXT, kit=KIT, vectors={"model": MODEL}, wire_vectors={"model": MODEL}, tours=tours)


def toured(job: JobState, number: int, *refs: Ref) -> Toured:
    vectors = {f"vector-{at}": ref for at, ref in enumerate(refs)}
    return Toured(job.tour_id(job.tours[number]), vectors, 5, REPORTS, 0)


def progress(job: JobState, number: int) -> TourProgress:
    return TourProgress(job.tour_id(job.tours[number]), 0, 1, None, 0, 0, 0, 0)


def test_progress_renews_a_lease_and_silence_ends_it() -> None:
    job, tours = a_job(0, 0, 0), RoundTours(Outbox())
    tours.ask_all(job, 0.0)
    tours.on_progress(job, job.tours[1], progress(job, 1), 60.0)
    assert tours.overdue(99.0) == []
    assert tours.wake_at() == 100
    assert tours.overdue(100.0) == [0, 2]
    assert tours.wake_at() == 160
    assert tours.overdue(159.0) == []
    tours.ask(job, job.tours[2], 120.0)
    assert tours.overdue(300.0) == [1, 2]
    assert tours.wake_at() is None


def test_hop_outcomes_are_kept_until_next_round_or_retry() -> None:
    job, tours = a_job(0, 0), RoundTours(Outbox())
    tours.ask_all(job, 0.0)
    ends = HopEnds((HopEnd(0, "d", "lost", "silent"),))
    for number in (0, 1):
        message = msgspec.structs.replace(progress(job, number), lost=1, ends=ends)
        tours.on_progress(job, job.tours[number], message, 1.0)
        tours.forget(number)
    assert whole_view(VIEW, job, tours, 0).tours[0].ends == ends
    tours.ask(job, job.tours[1], 2.0)
    assert tours.ends == {0: ends}
    job.tours = a_job(0).tours
    assert tours.plan(job, 0) is not None
    assert whole_view(VIEW, job, tours, 0).tours[0].ends is None


def test_forgotten_tour_is_never_overdue() -> None:
    job, tours = a_job(0, 0), RoundTours(Outbox())
    tours.ask_all(job, 0.0)
    tours.forget(0)
    assert tours.overdue(100.0) == [1]


def test_site_traffic_renews_only_tours_with_pending_results() -> None:
    job, tours = a_job(0, 0, 0), RoundTours(Outbox())  # 0 and 2 are led by site-0
    tours.ask_all(job, 0.0)
    tours.fetch(job.tours[0], toured(job, 0, MODEL))
    tours.received_from("site-0", 60.0)
    tours.received_from("site-1", 60.0)
    assert tours.overdue(100.0) == [1, 2]
    assert tours.overdue(160.0) == [0]


def test_result_is_complete_with_last_blob_or_fetched_again() -> None:
    job, tours = a_job(0, 0), RoundTours(Outbox())
    first, second = toured(job, 0, MODEL), toured(job, 1, MODEL, OTHER)
    site = Address("edge", "site-1")
    assert tours.fetch(job.tours[1], second) == [Pull(MODEL, site), Pull(OTHER, site), Pull(REPORTS, site)]
    assert tours.fetch(job.tours[1], second) == []
    tours.fetch(job.tours[0], first)
    assert tours.live() == {ref.digest for ref in (MODEL, OTHER, REPORTS)}
    assert tours.pulled(REPORTS.digest) == []
    assert tours.pulled(MODEL.digest) == [first]
    tours.pull_failed(OTHER.digest)
    assert tours.live() == set()
    assert tours.pulled(OTHER.digest) == []
    assert len(tours.fetch(job.tours[1], second)) == 3


@pytest.mark.parametrize("legs", [(0, 0, 0), (0, 0, 1), (0, 1, 2)])
def test_leg_is_complete_when_job_has_all_results_or_failures(legs) -> None:
    job, tours = a_job(*legs), RoundTours(Outbox())
    assert not tours.gathered(job)
    for number, leg in enumerate(legs):
        job.leg = leg
        assert not tours.gathered(job)
        if number == 1:
            job.apply(TourGivenUp("job", number, "lost"))
        else:
            job.apply(TourArrived("job", toured(job, number)))
        assert tours.gathered(job) == job.gathered == (leg not in legs[number + 1 :])


def test_only_tours_of_current_plan_are_known() -> None:
    job, tours = a_job(0, 0), RoundTours(Outbox())
    assert tours.plan(job, 1) == job.tours[1]
    assert tours.plan(job, 2) is None
    moved = TourPlan(1, "site-9", ("d",), attempt=2)
    job.apply(TourMoved("job", moved))
    assert tours.plan(job, 1) == moved
    job.tours = ()
    assert tours.plan(job, 1) is None
    assert not tours.gathered(job)


@pytest.mark.parametrize(
    ("vectors", "reports", "why"),
    [
        ({"model": Ref(bytes(32), 1 << 32, "float32")}, REPORTS, "more than"),
        ({"model": MODEL, "disk-filler": MODEL}, REPORTS, "was not requested"),
        ({"model": MODEL}, Ref(bytes(32), REPORT_BYTES + 1), "the reports are"),
    ],
)
def test_impossible_result_is_not_fetched(vectors, reports, why) -> None:
    bench = Bench()
    bench.running()
    effects = bench.receive(site("s1"), Toured(TourId("job", 1, 0, 1), vectors, 5, reports, 0))
    assert not [effect for effect in effects if isinstance(effect, Pull)]
    (answer,) = sends(effects)
    assert isinstance(answer, TourDiscarded)
    assert why in answer.reason


def test_tour_deadline_is_not_renewed_by_progress() -> None:
    job, tours = a_job(0, 1), RoundTours(Outbox())
    (first, _), limit = job.tours, 2 * 60 * 60.0  # one visit of 60 leases, and the same time for start and end
    tours.ask(job, first, 0.0)
    for now in range(0, int(limit), 60):
        tours.on_progress(job, first, progress(job, 0), float(now))
        assert tours.overdue(float(now)) == []
    assert tours.past_deadline(0, limit - 1) is False
    assert tours.overdue(limit) == [0]
    assert tours.past_deadline(0, limit) is True


def test_restarted_site_keeps_deadline_and_new_request_resets_it() -> None:
    job, tours = a_job(0), RoundTours(Outbox())
    tours.ask(job, job.tours[0], 0.0)
    tours.on_progress(job, job.tours[0], progress(job, 0), 10.0)
    assert tours.ask_again(job, "site-0", 7000.0)
    assert tours.past_deadline(0, 7200.0)
    tours.ask(job, job.tours[0], 7000.0)
    assert not tours.past_deadline(0, 7200.0)


def test_tours_sharing_a_device_have_a_longer_deadline() -> None:
    assert [Leg(a_job(0)).deadline(tour) for tour in a_job(0).tours] == [7200.0]
    shared = a_job(0, 0, 0)
    assert {Leg(shared).deadline(tour) for tour in shared.tours} == {4 * 3600.0}
