"""Turns of jobs: one that waits for devices blocks no other, and times out as configured."""

from __future__ import annotations

from coordinator.machine.waiting_jobs import PLAN_AGAIN
from coordinator.records import JobEnded, JobWaits, RoundClosed, RoundPlanned
from coordinator.rounds.planning import PlanRound
from coordinator.rounds.preparing import PrepareJob
from sojourn.node.machine import TimerFired
from sojourn.protocol.operator_messages import Inspect, Jobs, Submit
from tests.coordinator.machine.cloud_bench import OPERATOR, records, text
from tests.coordinator.machine.fleet_bench import FleetBench
from tests.sojourn.store.replays import sends


def submit(bench: FleetBench, name: str, now=0.0, **changes):
    return bench.receive(OPERATOR, Submit(f"t-{name}", text(name, **changes)), now)


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


def test_next_job_runs_while_first_waits() -> None:
    bench = two_jobs()
    assert status(bench) == {"first": "waiting", "job": "compiling"}
    bench.compile()
    assert records(bench.plan()) == [RoundPlanned]
    assert status(bench) == {"first": "waiting", "job": "running"}


def test_older_job_resumes_after_the_round_if_devices_joined() -> None:
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


def test_older_job_without_devices_is_not_tried_after_a_round() -> None:
    bench = two_jobs()
    bench.compile()
    bench.plan()
    bench.toured(0, "s1", now=11.0)
    bench.toured(1, "s2", now=11.0)
    bench.close(12.0)
    (plan,) = bench.work.values()
    assert plan.state.name == "job"


def test_queued_job_names_its_predecessor() -> None:
    bench = FleetBench()
    bench.running()
    submit(bench, "later")
    (answer,) = sends(bench.receive(OPERATOR, Inspect("t", "later")))
    assert answer.jobs[0].detail == "its turn comes after job job"


def test_waiting_jobs_are_tried_in_order_when_devices_join() -> None:
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


def test_restart_resumes_the_job_with_active_tours() -> None:
    bench = two_jobs()
    bench.compile()
    bench.plan()
    bench.cloud, bench.work = bench.replayed(), {}
    bench.note(bench.cloud.start(100.0))
    assert bench.cloud._queue.current is bench.cloud.state.jobs["job"]
    assert bench.work == {}


def test_timeout_fails_waiting_job_unless_its_devices_joined() -> None:
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
        assert records(bench.handle(TimerFired(), 100.0)) == ([] if came else [JobEnded])
        assert status(bench)["first"] == ("waiting" if came else "failed")
        wake = bench.cloud.wake_at()
        assert wake is not None
        assert wake > 100.0


def test_timeout_ends_job_whose_devices_keep_declining() -> None:
    """Both decline the estimation: a declined estimation does not count as training."""
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
            bench.handle(TimerFired(), now)
    assert state.status == "failed"
    why = "waited 100 s for devices (fleet.timeout): 2 devices are online, but none of them could be estimated: a:"
    assert state.detail.startswith(why)


def test_declined_estimation_is_in_status_and_round_report() -> None:
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
            (answer,) = sends(bench.receive(OPERATOR, Inspect("t", "job")))
            assert (f"b: not estimated: {why}" in answer.jobs[0].notes) == bool(reasons)
            bench.plan()
        if reasons and state.phase == "train":
            (answer,) = sends(bench.receive(OPERATOR, Inspect("t", "job")))
            assert answer.jobs[0].notes == (
                f"b: not estimated: {why}",
                "skipped, they could not be estimated: b",
            )
    assert state.history[0].failures == (f"b: not estimated: {why}",)
    assert (state.unestimated, state.estimation_failures) == ((), 0)


def test_device_minimum_applies_only_to_first_round() -> None:
    bench = FleetBench()
    bench.running()
    bench.join("s2", (), revision=2, now=5.0)
    bench.toured(0, "s1", now=10.0)
    bench.toured(1, "s2", now=10.0)
    bench.close(10.0)
    assert bench.cloud.state.jobs["job"].detail == "b just disconnected and may return"
    bench.handle(TimerFired(), 20.0)
    assert records(bench.plan(20.0)) == [RoundPlanned]
    assert [tour.hops for tour in bench.cloud.state.jobs["job"].tours] == [("a",)]


def test_job_without_devices_names_missing_ones_and_since_when() -> None:
    bench = FleetBench()
    bench.running()
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    bench.join("s1", (), revision=2, now=60.0)
    bench.join("s2", (), revision=2, now=180.0)
    bench.close(200.0)
    bench.plan(200.0)
    assert bench.cloud.state.jobs["job"].detail == (
        "no online device can do the job; offline: b (since 2026-09-21 14:16 UTC), a (since 2026-09-21 14:14 UTC)"
    )


def test_always_and_never_selected_devices_are_named() -> None:
    bench = FleetBench()
    bench.join("s1", ("a", "b", "c"))
    submit(bench, "job", rounds=5, **{"fleet.devices": 3})
    bench.compile()
    bench.plan()
    state = bench.cloud.state.jobs["job"]
    assert (state.always, state.never) == ([], [])
    state.taken, state.counted_rounds = {"a": 3, "b": 1}, 3
    (answer,) = sends(bench.cloud._requests.inspect(OPERATOR, Inspect("t", "job"), 0.0))
    assert isinstance(answer, Jobs)
    assert (answer.jobs[0].always, answer.jobs[0].never) == (("a",), ("c",))


def test_compiled_job_yields_to_older_job_with_new_devices() -> None:
    bench = two_jobs()
    bench.join("s3", ("c",), now=3.0)  # while the second is compiled
    assert [type(work) for work in bench.work.values()] == [PrepareJob]
    bench.compile(5.0)
    (plan,) = bench.work.values()
    assert plan.state.name == "first"
    assert records(bench.plan(5.0)) == [RoundPlanned]
    assert status(bench) == {"first": "running", "job": "waiting"}
