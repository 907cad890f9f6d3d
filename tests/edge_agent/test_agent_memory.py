"""The memory of objectives in the agent's machine: a visit is trained only when its memory is final."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edge_agent.agent import Agent
from edge_agent.records import MAX_MEMORIES, Memory
from edge_agent.training.messages import Train, Trained
from sojourn import parts
from sojourn.node.machine import LinkUp, Log, Pull, Pulled, Send, StartWork, TimerFired, WorkDone
from sojourn.protocol.messages import Accepted, Cancel, Declined, Discarded, Progress, Visit
from sojourn.protocol.wire import Offer, Ref, Task
from sojourn.store.blobs import ref_of
from tests.edge_agent.agent_bench import KIT, MODEL, Bench, visit_id
from tests.sojourn.store.replays import sends

NAMES = ("sgd", "dyn", "scaffold", "own.module:Class")
OFFER = Offer("1", "m", "r", 2, 0, NAMES, "npz")
LEASE = 60.0


def task(objective: parts.Objective | None = None, estimator: parts.Estimator | None = None) -> Task:
    kind = "estimate" if estimator else "train"
    return Task(kind, parts.Training(), objective or parts.Dyn(), "float32", 1, estimator)  # type: ignore[arg-type]


def visit(asked: Task | None = None, **where: Any) -> Visit:
    return Visit(visit_id(**where), KIT, {"model": MODEL}, asked or task(), 7, LEASE)


def memory(name: str) -> dict[str, Ref]:
    return {"h": ref_of(name.encode(), "float32")}


def pulled(bench: Bench, message: Visit, now: float = 0.0) -> list[Any]:
    """Send an order, and deliver its blobs; return the effects of the last blob."""
    bench.ask(message, now)
    bench.handle(Pulled(KIT.digest), now)
    return bench.handle(Pulled(MODEL.digest), now)


def finish(bench: Bench, name: str, remembered: int, now: float = 0.0) -> list[Any]:
    metrics = {"remembered": float(remembered)}
    return bench.handle(WorkDone(bench.work, Trained({"model": MODEL}, 5, metrics, None, memory(name))), now)


def done(effects: list[Any]) -> list[Train]:
    return [effect.work for effect in effects if isinstance(effect, StartWork)]


def warnings(effects: list[Any]) -> list[str]:
    return [effect.text for effect in effects if isinstance(effect, Log) and effect.level == "warning"]


@pytest.fixture
def bench() -> Bench:
    return Bench(offer=OFFER)


def test_memory_counts_accepted_visits(bench: Bench) -> None:
    for number in range(3):
        (work,) = done(pulled(bench, visit(round_=number)))
        assert work.remembered == number
        assert work.memory == (memory(str(number - 1)) if number else {})
        finish(bench, str(number), work.remembered)
        bench.ask(Accepted(visit_id(round_=number)))
    assert bench.agent.state.memory == {"job": Memory(memory("2"), 3)}


def test_discarded_visit_is_neither_counted_nor_remembered(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    bench.ask(Accepted(visit_id()))
    pulled(bench, visit(round_=2))
    finish(bench, "b", 1)
    bench.ask(Discarded(visit_id(round_=2), "not finite"))
    (work,) = done(pulled(bench, visit(round_=3)))
    assert (work.memory, work.remembered) == (memory("a"), 1)


def test_lost_memory_restarts_the_visit_count(bench: Bench) -> None:
    for number in range(3):
        pulled(bench, visit(round_=number))
        finish(bench, str(number), 0)  # the training process could not use its memory
        bench.ask(Accepted(visit_id(round_=number)))
    assert bench.agent.state.memory["job"].visits == 1


def test_training_waits_until_the_last_result_is_settled(bench: Bench) -> None:
    pulled(bench, visit())
    answer = sends(finish(bench, "a", 0))[0]
    effects = pulled(bench, visit(round_=2), 0.5)
    assert done(effects) == []
    assert sends(effects) == [answer]  # resent immediately: a visit waits for the reply
    assert bench.agent.state.held["job/2/0/0"].answer is None
    # Progress reports continue, and so do offers of the unanswered result.
    sent = sends(bench.handle(TimerFired(), 2.0))
    assert Progress(visit_id(round_=2), "fetching", 0, 0) in sent
    assert answer in sent
    (work,) = done(bench.ask(Accepted(visit_id()), 3.0))
    assert (work.visit, work.memory, work.remembered) == (visit(round_=2), memory("a"), 1)
    assert sends(bench.handle(TimerFired(), 4.5)) == [Progress(visit_id(round_=2), "training", 0, 0)]


@pytest.mark.parametrize("word", [Discarded(visit_id(), "late"), Cancel(visit_id())])
def test_refused_result_is_settled_too(bench: Bench, word: Any) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    assert done(pulled(bench, visit(round_=2))) == []
    (work,) = done(bench.ask(word))
    assert (work.memory, work.remembered) == ({}, 0)


def test_late_acceptance_gives_the_same_training_order() -> None:
    orders = []
    for late in (False, True):
        bench = Bench(offer=OFFER)
        pulled(bench, visit())
        finish(bench, "a", 0)
        if not late:
            bench.ask(Accepted(visit_id()))
        effects = pulled(bench, visit(round_=2))
        if late:
            effects = bench.ask(Accepted(visit_id()), 20.0)
        orders += done(effects)
    assert orders[0] == orders[1]


def test_training_also_waits_for_blobs(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    bench.ask(visit(round_=2))
    assert done(bench.ask(Accepted(visit_id()))) == []
    bench.handle(Pulled(KIT.digest))
    assert [work.remembered for work in done(bench.handle(Pulled(MODEL.digest)))] == [1]


def test_unanswered_result_is_dropped_after_half_a_lease(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    pulled(bench, visit(round_=2), 10.0)
    assert done(bench.handle(TimerFired(), 39.9)) == []
    assert bench.agent.wake_at() is not None
    assert bench.agent.wake_at() <= 10.0 + LEASE / 2  # type: ignore[operator]
    effects = bench.handle(TimerFired(), 40.0)
    assert [(work.memory, work.remembered) for work in done(effects)] == [({}, 0)]
    (warning,) = warnings(effects)
    assert "job round 1 tour 1 hop 1" in warning
    assert bench.ask(Accepted(visit_id()), 41.0) == []  # too late
    assert bench.agent.state.memory == {}


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (task(parts.Sgd()), {"round_": 2}),
        (task(parts.Dyn()), {"job": "other"}),
        (task(parts.Dyn(), parts.UpdateEstimator()), {"round_": 2}),
    ],
)
def test_unrelated_visits_do_not_wait(bench: Bench, asked: Task, where: dict[str, Any]) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    (work,) = done(pulled(bench, visit(asked, **where)))
    assert (work.memory, work.remembered) == ({}, 0)


def test_results_without_memory_do_not_delay_training(bench: Bench) -> None:
    pulled(bench, visit(task(parts.Sgd())))
    bench.handle(WorkDone(bench.work, Trained({"model": MODEL}, 5, {}, None, {})))
    assert len(done(pulled(bench, visit(round_=2)))) == 1


def test_estimation_does_not_receive_the_memory(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    bench.ask(Accepted(visit_id()))
    (work,) = done(pulled(bench, visit(task(parts.Dyn(), parts.UpdateEstimator()), round_=2)))
    assert (work.memory, work.remembered) == ({}, 0)


def test_later_attempt_of_the_unanswered_visit_ends_the_wait(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    pulled(bench, visit(round_=2))
    effects = bench.ask(visit(attempt=(1, 2)))
    assert [message.reason for message in sends(effects) if isinstance(message, Declined)] == ["busy"]
    assert [work.visit for work in done(effects)] == [visit(round_=2)]


def test_waiting_visit_can_be_superseded_and_cancelled(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    pulled(bench, visit(round_=2))
    assert done(pulled(bench, visit(round_=3))) == []
    bench.ask(Cancel(visit_id(round_=3)))
    assert done(bench.ask(Accepted(visit_id()))) == []
    assert bench.agent.state.held == {}
    assert bench.agent.wake_at() is None


def test_restart_during_the_wait_waits_again(bench: Bench) -> None:
    pulled(bench, visit())
    answer = sends(finish(bench, "a", 0))[0]
    pulled(bench, visit(round_=2), 5.0)
    twin = bench.replayed()
    effects: list[Any] = twin.start(100.0)
    assert Send(effects[0].to, answer) == effects[0]
    assert [effect.ref for effect in effects if isinstance(effect, Pull)] == [KIT, MODEL]
    twin.handle(Pulled(KIT.digest), 100.0)
    assert done(twin.handle(Pulled(MODEL.digest), 100.0)) == []
    assert done(twin.handle(LinkUp(), 101.0)) == []
    bench.agent = twin
    (work,) = done(bench.ask(Accepted(visit_id()), 102.0))
    assert (work.memory, work.remembered) == (memory("a"), 1)


def test_restart_after_acceptance_keeps_the_memory(bench: Bench) -> None:
    pulled(bench, visit())
    finish(bench, "a", 0)
    bench.ask(Accepted(visit_id()))
    for cut in range(len(bench.records) + 1):
        twin = bench.replayed(cut)
        assert twin.live() >= {ref.digest for ref in memory("a").values()}
        assert twin.state.memory == {"job": Memory(memory("a"), 1)}


def test_memories_of_sixteen_jobs_are_kept(bench: Bench) -> None:
    def accept(job: str, round_: int = 1) -> None:
        pulled(bench, visit(job=job, round_=round_))
        finish(bench, job, 0)
        bench.ask(Accepted(visit_id(job=job, round_=round_)))

    assert MAX_MEMORIES == 16
    for number in range(16):
        accept(f"job-{number}")
    accept("job-0", 2)  # so that job-1 is the oldest
    accept("job-16")
    assert list(bench.agent.state.memory) == [*(f"job-{n}" for n in range(2, 16)), "job-0", "job-16"]
    assert memory("job-1")["h"].digest not in bench.agent.live()


@pytest.mark.parametrize(
    ("asked", "supported"),
    [
        (task(parts.OwnObjective(part="own.module:Class")), True),
        (task(parts.OwnObjective(part="own.module:Other")), False),
        (task(parts.OwnObjective(part="os:system")), False),
        (task(parts.Prox()), False),
        (task(parts.Prox(), parts.SizeEstimator()), True),  # an estimation uses the plain loss
    ],
)
def test_only_offered_objectives_and_estimators_are_accepted(bench: Bench, asked: Task, supported: bool) -> None:
    effects = bench.ask(visit(asked))
    declined = [message for message in sends(effects) if isinstance(message, Declined)]
    assert [message.reason for message in declined] == ([] if supported else ["unsupported"])
    assert bool(bench.records) == supported


@pytest.mark.parametrize("shared", [(), ("class-counts",)])
def test_class_counts_are_shared_only_with_owner_consent(shared: tuple[str, ...]) -> None:
    bench = Bench(offer=msgspec.structs.replace(OFFER, shares=shared))
    effects = bench.ask(visit(task(parts.Sgd(), parts.ClassCountEstimator())))
    (answer,) = [*sends(effects), *sends(bench.handle(TimerFired()))]
    if shared:
        assert isinstance(answer, Progress)
    else:
        assert answer.reason == "unsupported"
        assert "does not share its class counts" in answer.detail


def test_offer_changed_over_a_restart_applies_to_old_visits(bench: Bench) -> None:
    bench.ask(visit(task(parts.OwnObjective(part="own.module:Class"))))
    twin = Agent("d", msgspec.structs.replace(OFFER, objectives=("sgd",)))
    twin.restore(bench.agent.snapshot())
    effects = twin.start(0.0)
    assert [message.reason for message in sends(effects)] == ["unsupported"]
    assert not [effect for effect in effects if isinstance(effect, Pull)]
    assert twin.state.held == {}
    assert twin.wake_at() == 1.0  # it is resent until it is answered
