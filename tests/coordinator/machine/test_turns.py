"""Whose turn it is: a job that waits for devices holds up no other, and times out as it says."""

from __future__ import annotations

from coordinator.machine.waiting_jobs import PLAN_AGAIN
from coordinator.records import JobEnded, JobWaits, RoundClosed, RoundPlanned
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from sojourn.node.machine import Woke
from sojourn.protocol.messages import Inspect, Jobs, Submit
from tests.coordinator.machine.cloud_bench import OPERATOR, records, text
from tests.coordinator.machine.fleet_bench import FleetBench
from tests.sojourn.store.replays import sends


def submit(bench: FleetBench, name: str, now=0.0, **changes):
    return bench.hear(OPERATOR, Submit(f"t-{name}", text(name, **changes)), now)


def two_jobs() -> FleetBench:
    """The first job waits for a third device; the second trains with two."""
    bench = FleetBench()
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    submit(bench, "first", **{"fleet.devices": 3})
    submit(bench, "job", rounds=3)
    bench.compile()
    bench.plan()
    assert bench.cloud.state.jobs["first"].status == "waiting"
    return bench


def status(bench: FleetBench) -> dict[str, str]:
    return {name: state.status for name, state in bench.cloud.state.jobs.items()}


def test_the_next_job_has_its_turn_while_the_first_waits() -> None:
    bench = two_jobs()
    assert status(bench) == {"first": "waiting", "job": "compiling"}
    bench.compile()
    assert records(bench.plan()) == [RoundPlanned]
    assert status(bench) == {"first": "waiting", "job": "running"}


def test_the_older_job_has_its_turn_again_after_the_round_when_its_devices_came() -> None:
    bench = two_jobs()
    bench.compile()
    bench.plan()
    bench.join("s3", ("c",), now=10.0)
    assert bench.work == {}  # the round under way is not disturbed
    bench.toured(0, "s1", now=11.0)
    bench.toured(1, "s2", now=11.0)
    assert records(bench.close(12.0)) == [RoundClosed]
    (plan,) = bench.work.values()
    assert plan.state.name == "first"
    assert records(bench.plan(12.0)) == [RoundPlanned]
    assert bench.cloud._queue.current is bench.cloud.state.jobs["first"]


def test_without_its_devices_the_older_job_is_not_even_tried_after_a_round() -> None:
    bench = two_jobs()
    bench.compile()
    bench.plan()
    bench.toured(0, "s1", now=11.0)
    bench.toured(1, "s2", now=11.0)
    bench.close(12.0)
    (plan,) = bench.work.values()
    assert plan.state.name == "job"


def test_a_queued_job_says_after_whom_it_comes() -> None:
    bench = FleetBench()
    bench.running()
    submit(bench, "later")
    (answer,) = sends(bench.hear(OPERATOR, Inspect("t", "later")))
    assert answer.jobs[0].detail == "its turn comes after job job"


def test_jobs_that_all_wait_are_tried_in_their_order_when_somebody_comes() -> None:
    bench = FleetBench()
    for name, devices in (("first", 3), ("second", 2)):
        submit(bench, name, **{"fleet.devices": devices})
        bench.compile()
        bench.plan()
    assert status(bench) == {"first": "waiting", "second": "waiting"}
    bench.join("s1", ("a", "b"))
    assert [work.state.name for work in bench.work.values()] == ["first"]
    assert records(bench.plan()) == [JobWaits]
    assert [work.state.name for work in bench.work.values()] == ["second"]
    assert records(bench.plan()) == [RoundPlanned]


def test_a_restart_takes_up_the_job_whose_tours_are_out() -> None:
    bench = two_jobs()
    bench.compile()
    bench.plan()
    bench.cloud, bench.work = bench.replayed(), {}
    bench.note(bench.cloud.start(100.0))
    assert bench.cloud._queue.current is bench.cloud.state.jobs["job"]
    assert bench.work == {}


def test_a_timeout_ends_a_job_that_waits_behind_another_but_not_one_whose_devices_came() -> None:
    for came in (False, True):
        bench = FleetBench()
        bench.join("s1", ("a",))
        bench.join("s2", ("b",))
        submit(bench, "first", **{"fleet.devices": 3, "fleet.timeout": 100})
        submit(bench, "job", **{"tours.site_lease": 10_000})
        bench.compile()
        bench.plan()
        bench.compile()
        bench.plan()
        if came:
            bench.join("s3", ("c",), now=50.0)
        assert records(bench.tell(Woke(), 100.0)) == ([] if came else [JobEnded])
        assert status(bench)["first"] == ("waiting" if came else "failed")
        wake = bench.cloud.wake_at()
        assert wake is not None
        assert wake > 100.0


def test_a_timeout_ends_a_job_though_devices_are_asked_again_and_again() -> None:
    """Each of them declines to be estimated: being asked is not training."""
    bench = FleetBench()
    bench.join("s1", ("a", "b"))
    changes = {"estimator.name": "sizes", "fleet.timeout": 100}
    submit(bench, "job", **changes)
    bench.compile()
    hot, now = {"a": "hot", "b": "hot"}, 0.0
    for _ in range(12):
        if any(isinstance(work, PlanRound) for work in bench.work.values()):
            bench.plan(now)
        state = bench.cloud.state.jobs["job"]
        if state.tours:
            for tour in state.tours:
                bench.toured(tour.number, tour.site, now=now)
            bench.close(now, reasons=hot)
        if state.status == "waiting" and not bench.work:
            now += PLAN_AGAIN
            bench.tell(Woke(), now)
    assert state.status == "failed"
    why = (
        "waited 100 s for devices (fleet.timeout): 2 devices are here, and none of them could be estimated: a: not est"
    )
    assert state.detail.startswith(why)


def test_who_declines_to_be_estimated_stands_in_the_status_and_in_the_rounds_report() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b"))
    submit(bench, "job", **{"estimator.name": "sizes"})
    bench.compile()
    bench.plan()
    why = "data: labels in column 3 are not among the job's classes. " + "x" * 1500 + " Do this."
    for reasons in ({"b": why}, {"b": why}, {}):
        state = bench.cloud.state.jobs["job"]
        for tour in state.tours:
            bench.toured(tour.number, tour.site)
        bench.close(reasons=reasons)
        if any(isinstance(work, PlanRound) for work in bench.work.values()):
            (answer,) = sends(bench.hear(OPERATOR, Inspect("t", "job")))
            assert (f"b: not estimated: {why}" in answer.jobs[0].notes) == bool(reasons)
            bench.plan()
        if reasons and state.phase == "train":
            (answer,) = sends(bench.hear(OPERATOR, Inspect("t", "job")))
            assert answer.jobs[0].notes == (
                f"b: not estimated: {why}",
                "left out, they could not be estimated: b",
            )
    assert state.history[0].failures == (f"b: not estimated: {why}",)
    assert (state.unestimated, state.estimation_failures) == ((), 0)


def test_only_the_first_round_asks_for_as_many_devices_as_the_job_says() -> None:
    bench = FleetBench()
    bench.running()
    bench.join("s2", (), revision=2, now=5.0)
    bench.toured(0, "s1", now=10.0)
    bench.toured(1, "s2", now=10.0)
    bench.close(10.0)
    assert bench.cloud.state.jobs["job"].detail == "b went just now, and may be back"
    bench.tell(Woke(), 20.0)
    assert records(bench.plan(20.0)) == [RoundPlanned]
    assert [tour.hops for tour in bench.cloud.state.jobs["job"].tours] == [("a",)]


def test_a_job_without_any_device_says_whom_it_lacks_and_since_when() -> None:
    bench = FleetBench()
    bench.running()
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    bench.join("s1", (), revision=2, now=60.0)
    bench.join("s2", (), revision=2, now=180.0)
    bench.close(200.0)
    bench.plan(200.0)
    assert bench.cloud.state.jobs["job"].detail == (
        "no device is here that can do the job; gone: b (since 2026-09-21 14:16 UTC), a (since 2026-09-21 14:14 UTC)"
    )


def test_devices_that_every_round_takes_or_none_are_named() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b", "c"))
    submit(bench, "job", rounds=5, **{"fleet.devices": 3})
    bench.compile()
    bench.plan()
    state = bench.cloud.state.jobs["job"]
    assert (state.always, state.never) == ([], [])
    state.taken, state.counted_rounds = {"a": 3, "b": 1}, 3
    answer = bench.cloud._requests.inspect(Inspect("t", "job"), 0.0)
    assert isinstance(answer, Jobs)
    assert (answer.jobs[0].always, answer.jobs[0].never) == (("a",), ("c",))


def test_a_compiled_job_lets_an_older_one_go_first_whose_devices_came_meanwhile() -> None:
    bench = two_jobs()
    bench.join("s3", ("c",), now=3.0)  # while the second is compiled
    assert [type(work) for work in bench.work.values()] == [PrepareJob]
    bench.compile(5.0)
    (plan,) = bench.work.values()
    assert plan.state.name == "first"
    assert records(bench.plan(5.0)) == [RoundPlanned]
    assert status(bench) == {"first": "running", "job": "waiting"}
