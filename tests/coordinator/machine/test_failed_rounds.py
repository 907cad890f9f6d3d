"""Rounds without a result: the job keeps its round, waits with the reason, tries again, and fails after three."""

from __future__ import annotations

from coordinator.fleet_records import VisitOutcome
from coordinator.machine.job_queue import FAILED_ROUNDS
from coordinator.machine.waiting_jobs import PLAN_AGAIN
from coordinator.records import JobEnded, RoundClosed, RoundFailed, RoundPlanned
from coordinator.rounds.results import CloseRound
from sojourn.node.machine import TimerFired
from sojourn.protocol.operator_messages import Continue, Submit
from tests.coordinator.machine.cloud_bench import OPERATOR, Bench, records, text

HOT = "no device could train: 2 devices (a, b): declined, too hot"
AGAIN = "The next attempt starts in 60 s, or when another device connects"


def home(bench: Bench, now: float = 0.0) -> None:
    """Complete all tours that are out."""
    for tour in bench.cloud.state.jobs["job"].tours:
        bench.toured(tour.number, tour.site, bench.cloud.state.jobs["job"].round, now)


def fail(bench: Bench, now: float = 0.0):
    home(bench, now)
    lines = (HOT.partition(": ")[2],)
    return bench.did(CloseRound, lambda work: RoundFailed(work.state.name, HOT, lines, 7, 2), now)


def retried(bench: Bench, now: float) -> None:
    """End the wait, and plan the round again."""
    bench.handle(TimerFired(), now)
    assert records(bench.plan(now)) == [RoundPlanned]


def fail_for_good(bench: Bench) -> None:
    """Every attempt fails."""
    for at in range(FAILED_ROUNDS):
        if at:
            retried(bench, at * PLAN_AGAIN)
        fail(bench, at * PLAN_AGAIN)


def test_round_without_result_is_retried_and_not_counted() -> None:
    bench = Bench()
    bench.running()
    effects = fail(bench)
    state = bench.cloud.state.jobs["job"]
    assert records(effects) == [RoundFailed]
    assert (state.status, state.round, state.history, state.tours) == ("waiting", 1, [], ())
    assert state.detail == f"attempt 1 of 3 at round 1 had no result: {HOT}. {AGAIN}"
    assert bench.work == {}
    assert bench.cloud.wake_at() == PLAN_AGAIN
    bench.handle(TimerFired(), PLAN_AGAIN - 1)
    assert bench.work == {}
    retried(bench, PLAN_AGAIN)
    home(bench, PLAN_AGAIN)
    assert RoundClosed in records(bench.close(PLAN_AGAIN))
    assert (len(state.history), state.failed_rounds or 0) == (1, 0)


def test_job_fails_after_three_failed_rounds_in_a_row() -> None:
    bench = Bench()
    bench.running()
    now = 0.0
    for _ in range(FAILED_ROUNDS - 1):
        assert records(fail(bench, now)) == [RoundFailed]
        now += PLAN_AGAIN
        retried(bench, now)
    assert records(fail(bench, now)) == [RoundFailed, JobEnded]
    state = bench.cloud.state.jobs["job"]
    assert state.status == "failed"
    assert state.detail == f"3 attempts at round 1 had no result; in the last one, {HOT}"
    assert (bench.work, bench.cloud.wake_at()) == ({}, None)


def test_temporary_declines_do_not_fail_a_job_before_timeout() -> None:
    bench = Bench()
    bench.running()
    rests = (VisitOutcome(0, 0, "site", "a", "declined", "hours: 8:00 to 20:00"),)
    now = 0.0
    state = bench.cloud.state.jobs["job"]
    while now < state.settings.fleet.timeout:
        home(bench, now)
        record = RoundFailed("job", HOT, ("hours",), 7, 1, visited=rests)
        assert records(bench.did(CloseRound, lambda _work: record, now)) == [RoundFailed]  # noqa: B023
        assert (state.status, state.failed_rounds or 0) == ("waiting", 0)
        assert state.detail == f"every device declines for now: {HOT}. {AGAIN}"
        now += 3600.0
        bench.handle(TimerFired(), now)
        if now < state.settings.fleet.timeout:
            assert records(bench.plan(now)) == [RoundPlanned]
    assert state.status != "waiting"
    assert "fleet.timeout" in state.detail


def test_result_resets_the_failure_count() -> None:
    bench = Bench()
    bench.running(rounds=9)
    for round_ in range(3):
        for attempt in range(FAILED_ROUNDS - 1):
            fail(bench, now := 1000.0 * round_ + PLAN_AGAIN * attempt)
            retried(bench, now + PLAN_AGAIN)
        home(bench)
        bench.close(now + PLAN_AGAIN)
        bench.plan(now + PLAN_AGAIN)
    assert (bench.cloud.state.jobs["job"].status, bench.cloud.state.jobs["job"].round) == ("running", 4)


def test_failure_count_and_reason_survive_a_restart() -> None:
    bench = Bench()
    bench.running()
    fail(bench)
    retried(bench, PLAN_AGAIN)
    fail(bench, PLAN_AGAIN)
    state = bench.replayed().state.jobs["job"]
    assert (state.failed_rounds, state.status) == (2, "waiting")
    assert state.detail == f"attempt 2 of 3 at round 1 had no result: {HOT}. {AGAIN}"
    assert state.unestimated == ("2 devices (a, b): declined, too hot",)


def test_job_that_failed_at_power_loss_ends_after_restart() -> None:
    bench = Bench()
    bench.running()
    fail_for_good(bench)
    bench.records.pop()
    again = bench.replayed()
    assert [state.status for state in again.state.unfinished] == ["waiting"]
    assert records(again.start(0.0)) == [JobEnded]
    assert again.state.jobs["job"].status == "failed"


def test_joining_device_ends_the_wait_but_leaving_one_does_not() -> None:
    bench = Bench()
    bench.join("s1", ("a", "b"))
    bench.receive(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    fail(bench)
    bench.join("s1", ("a",), revision=2, now=1.0)
    assert bench.work == {}
    bench.join("s1", ("a", "b"), revision=3, now=2.0)  # it can no longer decline
    assert len(bench.work) == 1


def test_waiting_job_yields_its_turn() -> None:
    bench = Bench()
    bench.running()
    bench.receive(OPERATOR, Submit("t2", text("second")))
    fail(bench)
    assert [work.name for work in bench.work.values()] == ["second"]


def test_failed_job_continues_with_count_reset() -> None:
    bench = Bench()
    bench.running()
    fail_for_good(bench)
    bench.receive(OPERATOR, Continue("c", "job"), 300.0)
    bench.plan(300.0)
    state = bench.cloud.state.jobs["job"]
    assert (state.status, state.round, state.failed_rounds or 0) == ("running", 1, 0)


def test_traffic_and_failures_carry_over_to_next_result() -> None:
    bench = Bench()
    bench.running()
    fail(bench)
    retried(bench, PLAN_AGAIN)
    state = bench.cloud.state.jobs["job"]
    assert (state.estimation_traffic, state.estimation_failures) == (7, 2)


def test_replanned_round_draws_other_devices() -> None:
    bench = Bench()
    bench.join("s1", tuple("abcdefgh"))
    bench.receive(OPERATOR, Submit("t", text(**{"arranger.fraction": 0.125})))
    bench.compile()
    bench.plan()
    drawn = []
    for at in range(FAILED_ROUNDS):
        drawn.append(bench.cloud.state.jobs["job"].tours[0].hops)
        fail(bench, at * PLAN_AGAIN)
        if at + 1 < FAILED_ROUNDS:
            retried(bench, (at + 1) * PLAN_AGAIN)
    assert len(set(drawn)) > 1
