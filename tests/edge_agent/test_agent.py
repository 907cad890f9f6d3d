"""The agent as a state machine: events in, effects out, and a restart at any point gives the same state."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from edge_agent.limits import Limits, LimitSettings
from edge_agent.records import RESULTS_KEPT, Memory, VisitEnded, VisitTaken, VisitTrained
from edge_agent.training.messages import Train, Warm
from sojourn.node.machine import (
    Append,
    CancelWork,
    LinkUp,
    LocalEvent,
    Log,
    PublishBirth,
    Pull,
    Pulled,
    PullFailed,
    Received,
    Send,
    StartWork,
    TimerFired,
    WorkDone,
    WorkFailed,
    WorkProgress,
)
from sojourn.protocol.data_summary import DataSummary, DataSurvey
from sojourn.protocol.messages import Accepted, Cancel, Declined, Discarded, Prepare, Progress, Visited
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import TrainingSize
from tests.edge_agent.agent_bench import EDGE, EPOCH, KIT, MEMORY, MODEL, OFFER, RESULT, Bench, trained, visit, visit_id
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.store.replays import sends, without_steps


def kinds(effects) -> list[str]:
    return [type(effect).__name__ for effect in effects if type(effect).__name__ != "Log"]


def test_visit_from_start_to_end() -> None:
    bench = Bench()
    effects = bench.ask(visit())
    assert kinds(effects) == ["Append", "Pull", "Pull"]
    assert bench.agent.wake_at() == 0.0
    assert sends(bench.handle(TimerFired())) == [Progress(visit_id(), "fetching", 0, 0)]
    assert bench.handle(Pulled(KIT.digest), 0.1) == []
    assert bench.handle(Pulled(MODEL.digest), 0.2) == [StartWork("job/1/0/0/1.1", Train(visit(), {}))]
    assert bench.agent.wake_at() == 0.2
    assert sends(bench.handle(TimerFired(), 0.2)) == [Progress(visit_id(), "training", 0, 0)]
    assert bench.handle(WorkProgress("job/1/0/0/1.1", 3, 9), 0.5) == []
    assert bench.agent.wake_at() == 1.2
    assert sends(bench.handle(TimerFired(), 1.2)) == [Progress(visit_id(), "training", 3, 9)]
    effects = bench.finish(2.0)
    answer = Visited(visit_id(), {"model": RESULT}, 5, {"loss": 0.5})
    assert effects[0] == Append(VisitTrained("job/1/0/0", answer, {}), sync=True, blobs=(RESULT.digest,))
    assert kinds(effects) == ["Append", "Send"]
    assert sends(effects) == [answer]
    effects = bench.ask(Accepted(visit_id()), 3.0)
    assert effects == [Append(VisitEnded("job/1/0/0", True), sync=True)]
    assert bench.agent.wake_at() is None
    assert bench.agent.live() == {KIT.digest}


def test_visit_finished_instantly_sends_no_progress() -> None:
    bench = Bench()
    bench.take(visit())
    assert [type(message) for message in sends(bench.handle(TimerFired()))] == [Progress]
    again = Bench()
    again.take(visit())
    assert [type(message) for message in sends(again.finish(0.0))] == [Visited]
    assert again.handle(TimerFired()) == []
    assert again.agent.wake_at() == 1.0


def test_result_is_resent_until_settled() -> None:
    bench = Bench()
    bench.take(visit())
    answer = sends(bench.finish(0.0))[0]
    times = []
    for _ in range(4):
        times.append(bench.agent.wake_at())
        assert sends(bench.handle(TimerFired(), times[-1])) == [answer]
    assert times == [1, 3, 7, 15]
    assert sends(bench.handle(LinkUp(), 16.0)) == [answer]
    assert RESULT.digest in bench.agent.live()
    bench.ask(Discarded(visit_id(), "late"))
    assert bench.agent.wake_at() is None
    assert RESULT.digest not in bench.agent.live()


def test_duplicates_are_answered_from_memory() -> None:
    bench = Bench()
    bench.take(visit())
    assert [type(message) for message in sends(bench.ask(visit(), 0.1))] == [Progress]
    answer = sends(bench.finish())[0]
    for _ in range(3):
        assert bench.ask(visit()) == [Send(EDGE, answer)]
    bench.ask(Accepted(visit_id()))
    assert sends(bench.ask(visit())) == [Declined(visit_id(), "stale", "this attempt has ended on this device")]
    assert bench.ask(Accepted(visit_id())) == []
    assert bench.ask(Discarded(visit_id(), "")) == []


def test_later_attempt_replaces_an_older_one() -> None:
    bench = Bench()
    bench.take(visit((1, 1)))
    effects = bench.ask(visit((1, 2)))
    assert kinds(effects) == ["Append", "CancelWork", "Append", "Pull", "Pull"]
    assert effects[1] == CancelWork("job/1/0/0/1.1")
    assert bench.agent.state.held["job/1/0/0"].order.id.attempt == (1, 2)


@pytest.mark.parametrize("finished", [False, True])
def test_late_older_attempt_changes_nothing(finished) -> None:
    bench = Bench()
    bench.take(visit((1, 2)))
    if finished:
        bench.finish()
    before = bench.agent.snapshot()
    effects = bench.ask(visit((1, 1)))
    assert sends(effects) == [Declined(visit_id((1, 1)), "stale", "this attempt has ended on this device")]
    assert bench.agent.snapshot() == before


def test_same_attempt_with_another_model_is_stale() -> None:
    bench = Bench()
    bench.take(visit())
    bench.finish()
    assert [m.reason for m in sends(bench.ask(visit(model=RESULT)))] == ["stale"]


@pytest.mark.parametrize(
    ("other", "taken"),
    [
        ({"round_": 2}, True),
        ({"attempt": (2, 1)}, True),
        ({"attempt": (2, 1), "hop": 3}, True),
        ({"attempt": (1, 2), "hop": 3}, True),
        ({"tour": 1}, False),
        ({"job": "other"}, False),
        ({"job": "other", "round_": 2}, False),
        ({"tour": 1, "attempt": (2, 1)}, False),
    ],
)
def test_device_is_busy_unless_the_job_has_moved_on(other, taken) -> None:
    bench = Bench()
    bench.take(visit())
    effects = bench.ask(visit(**other))
    if taken:
        assert any(isinstance(effect, CancelWork) for effect in effects)
        assert len(bench.agent.state.held) == 1
        assert not any(isinstance(message, Declined) for message in sends(effects))
    else:
        assert [message.reason for message in sends(effects)] == ["busy"]
        assert list(bench.agent.state.held) == ["job/1/0/0"]


def test_held_result_does_not_make_the_device_busy() -> None:
    bench = Bench()
    bench.take(visit())
    bench.finish()
    assert not any(isinstance(message, Declined) for message in sends(bench.ask(visit(job="other"))))
    assert len(bench.agent.state.held) == 2


@pytest.mark.parametrize("message", [Cancel(visit_id()), Discarded(visit_id(), "")])
def test_cancelled_visit_is_ended(message) -> None:
    bench = Bench()
    bench.take(visit())
    assert kinds(bench.ask(message)) == ["Append", "CancelWork"]
    assert bench.handle(TimerFired(), 5.0) == []


def test_only_the_requesting_edge_server_can_settle_a_visit() -> None:
    bench = Bench()
    bench.take(visit())
    bench.finish()
    stranger = Address("edge", "x")
    for message in (Accepted(visit_id()), Discarded(visit_id(), ""), Cancel(visit_id())):
        assert bench.ask(message, sender=stranger) == []
    for other in (Accepted(visit_id((1, 2))), Accepted(visit_id(hop=1))):
        assert bench.ask(other) == []
    assert bench.agent.state.held


def test_accepted_visit_is_not_trained_again_after_lost_record() -> None:
    bench = Bench()
    bench.take(visit())
    effects = bench.ask(Accepted(visit_id()))
    assert effects[0] == Append(VisitEnded("job/1/0/0", accepted=True), sync=True)
    assert isinstance(effects[1], CancelWork)
    assert not bench.agent.state.memory


def test_only_accepted_visits_commit_memory() -> None:
    for accepted in (True, False):
        bench = Bench()
        bench.take(visit())
        bench.finish(memory=True)
        assert MEMORY.digest in bench.agent.live()
        bench.ask(Accepted(visit_id()) if accepted else Discarded(visit_id(), ""))
        bench.take(visit(round_=2))
        effects = bench.replayed().start(0.0)
        assert bench.agent.state.memory == ({"job": Memory({"h": MEMORY}, 1)} if accepted else {})
        assert any(isinstance(effect, Pull) for effect in effects)


def test_failed_worker_gets_one_retry() -> None:
    bench = Bench()
    bench.take(visit())
    effects = bench.handle(WorkFailed(bench.work, "failed", "killed"))
    assert any(isinstance(effect, StartWork) for effect in effects)
    effects = bench.handle(WorkFailed(bench.work, "failed", "killed"))
    assert sends(effects) == [Declined(visit_id(), "failed", "killed")]
    assert effects[0] == Append(VisitEnded("job/1/0/0", False), sync=False)
    assert sends(bench.ask(visit())) == [Declined(visit_id(), "failed", "killed")]


@pytest.mark.parametrize(
    "reason", ["hot", "hours", "metered", "power", "busy", "memory", "disk", "data", "runtime", "unsupported"]
)
def test_other_failures_are_declined_at_once(reason) -> None:
    bench = Bench()
    bench.take(visit())
    assert sends(bench.handle(WorkFailed(bench.work, reason, "x" * 5000))) == [Declined(visit_id(), reason, "x" * 2000)]


@pytest.mark.parametrize(("why", "output"), [("gone", "gone"), ("disk", "disk")])
def test_unavailable_blob_is_declined(why, output) -> None:
    bench = Bench()
    bench.ask(visit())
    assert bench.handle(PullFailed(bytes(32), why)) == []
    assert [message.reason for message in sends(bench.handle(PullFailed(MODEL.digest, why)))] == [output]
    assert bench.agent.state.held == {}


def test_limits_and_unsupported_tasks_decline_the_visit() -> None:
    hot = Bench(objection=lambda: ("hot", "81 degrees"))
    assert sends(hot.ask(visit())) == [Declined(visit_id(), "hot", "81 degrees")]
    assert hot.ask(Prepare("job", KIT, TASK)) == []
    assert hot.records == []
    wide = msgspec.structs.replace(visit(), task=msgspec.structs.replace(TASK, threads=3))
    assert [message.reason for message in sends(Bench().ask(wide))] == ["unsupported"]


@pytest.mark.parametrize("known", [True, False])
def test_large_model_is_declined_before_any_transfer(known: bool) -> None:
    limits = Limits(LimitSettings(memory=300), Path("/nonexistent"))
    bench = Bench(room=limits.room)
    large = msgspec.structs.replace(MODEL, size=4 * 49_000_000)
    size = TrainingSize(49_000_000, 400_000_000, 1000) if known else None
    effects = bench.ask(msgspec.structs.replace(visit(model=large), size=size))
    assert kinds(effects) == ["Send"]
    (declined,) = sends(effects)
    assert declined.reason == "memory"
    assert "limits.memory allows 300 MB" in declined.detail
    assert bench.records == []
    assert bench.ask(Prepare("job", KIT, TASK, size=TrainingSize(49_000_000, 0, 0))) == []
    assert bench.ask(Prepare("job", msgspec.structs.replace(KIT, size=789 << 20), TASK)) == []
    assert kinds(bench.ask(visit())) == ["Append", "Pull", "Pull"]


def test_hanging_worker_sends_no_progress() -> None:
    bench = Bench()
    bench.take(visit(), 0.0)
    assert sends(bench.handle(TimerFired(), 30.0))
    assert sends(bench.handle(TimerFired(), 61.0)) == []
    assert bench.agent.wake_at() is None


def test_prepare_warms_up_an_idle_worker() -> None:
    bench = Bench()
    assert bench.ask(Prepare("job", KIT, TASK)) == [Pull(KIT, EDGE)]
    assert bench.agent.live() == {KIT.digest}
    assert bench.handle(Pulled(KIT.digest)) == [StartWork("warm", Warm(KIT, TASK))]
    bench.take(visit())
    assert bench.ask(Prepare("job", KIT, TASK)) == []
    assert bench.handle(WorkFailed("warm", "data", "none")) == []


def test_restart_resumes_unfinished_visits() -> None:
    bench = Bench()
    bench.take(visit(job="done"))
    answer = sends(bench.finish())[0]
    bench.take(visit())
    twin = bench.replayed()
    effects = twin.start(100.0)
    assert effects[0] == Send(EDGE, answer)
    assert [effect.ref for effect in effects if isinstance(effect, Pull)] == [KIT, MODEL]
    assert twin.handle(Pulled(KIT.digest), 100.0) == []
    (work, *_) = without_steps(twin.handle(Pulled(MODEL.digest), 100.0))
    assert work == StartWork("job/1/0/0/1.1", Train(visit(), {}))


def test_kept_results_and_fences_are_bounded() -> None:
    bench = Bench()
    for number in range(3 * RESULTS_KEPT):
        bench.take(visit(job=f"job-{number}"))
        bench.finish()
    assert len(bench.agent.state.held) == RESULTS_KEPT
    assert len(bench.agent.state.fences) <= RESULTS_KEPT
    assert len(bench.agent._visits._outbox._requests) == RESULTS_KEPT
    for number in range(3 * RESULTS_KEPT):
        bench.ask(Accepted(visit_id(job=f"job-{number}")))
    assert bench.agent.state.held == {}
    assert len(bench.agent.state.fences) == RESULTS_KEPT
    assert bench.agent.wake_at() is None


@pytest.mark.parametrize("seed", range(20))
def test_random_event_sequences_replay_to_the_same_state(seed) -> None:
    draw = random.Random(seed)
    bench = Bench()
    for step in range(120):
        attempt = (draw.randint(1, 2), draw.randint(1, 2))
        where = {"attempt": attempt, "round_": draw.randint(1, 2), "hop": draw.randint(0, 1)}
        names = visit_id(**where)
        event = draw.choice(
            [
                Received(EDGE, EPOCH, visit(**where)),
                Received(EDGE, EPOCH, visit(**where)),
                Pulled(KIT.digest),
                Pulled(MODEL.digest),
                Received(EDGE, EPOCH, Accepted(names)),
                Received(EDGE, EPOCH, Cancel(names)),
                Received(EDGE, EPOCH, Discarded(names, "")),
                PullFailed(MODEL.digest, "gone"),
                TimerFired(),
                LinkUp(),
                WorkDone(bench.work, trained(memory=True)),
                WorkFailed(bench.work, "memory", ""),
            ]
        )
        if isinstance(event, WorkDone | WorkFailed) and not any(
            not it.answer for it in bench.agent.state.held.values()
        ):
            continue
        bench.handle(event, float(step))
        assert sum(not held.answer for held in bench.agent.state.held.values()) <= 1
    for cut in range(len(bench.records)):
        assert bench.replayed(cut).snapshot() == bench.agent.snapshot()
    taken = [msgspec.msgpack.decode(record, type=bench.agent.record_form) for record in bench.records]
    attempts: dict[str, list[tuple[int, int]]] = {}
    for record in taken:
        if isinstance(record, VisitTaken):
            it = record.order.id
            attempts.setdefault(f"{it.round}/{it.hop}", []).append(it.attempt)
    assert all(each == sorted(set(each)) for each in attempts.values())


def test_refusal_of_a_started_visit_is_resent_until_cancelled() -> None:
    bench = Bench()
    bench.ask(visit())
    effects = bench.handle(PullFailed(visit().kit.digest, "gone"), 1.0)
    (answer,) = sends(effects)
    assert (answer.visit, answer.reason) == (visit().id, "gone")
    assert [e.message for e in bench.handle(TimerFired(), 10.0) if isinstance(e, Send)] == [answer]
    bench.ask(Cancel(visit().id))
    assert bench.handle(TimerFired(), 1000.0) == []


def test_data_survey_is_logged_and_announced_as_far_as_shared() -> None:
    bench = Bench(msgspec.structs.replace(OFFER, shares=("range",)))
    summary = DataSummary(samples=5, dtype="uint8", low=0, high=9, classes=("cat",), class_count=1)
    effects = bench.handle(
        LocalEvent(DataSurvey(summary, ("labels look odd (all are cat); to do: nothing",), ("cat",)))
    )
    assert [(each.text, each.level) for each in effects if isinstance(each, Log)] == [
        ("data: 5 samples of different shapes, uint8, values 0 to 9", "info"),
        ("data: 1 class: cat", "info"),
        ("data: labels look odd (all are cat); to do: nothing", "warning"),
    ]
    assert effects[-1] == PublishBirth()
    assert bench.agent.offer is not None
    assert bench.agent.offer.summary == DataSummary(samples=5, dtype="uint8", low=0, high=9)
    missing = bench.handle(LocalEvent(DataSurvey(DataSummary(fault="it is gone"))))
    assert missing == [Log("data: no data: it is gone", "warning"), PublishBirth()]


def test_odd_data_is_logged_once_per_job() -> None:
    bench = Bench()
    lines = []
    for round_ in (1, 2):
        bench.take(visit(round_=round_))
        odd = msgspec.structs.replace(trained(), note="odd", warnings=("odd (very); to do: fix it",))
        effects = bench.handle(WorkDone(bench.work, odd))
        sent = [each.message for each in effects if isinstance(each, Send)]
        assert [each.note for each in sent if isinstance(each, Visited)] == ["odd"]
        lines += [each.text for each in effects if isinstance(each, Log) and each.level == "warning"]
        bench.ask(Accepted(visit_id(round_=round_)))
    assert lines == ["job job, data: odd (very); to do: fix it"]
