"""The transition table of a visit on a device: the machine makes exactly its transitions."""

from __future__ import annotations

import random

import msgspec
import pytest

from edge_agent.agent import Agent
from edge_agent.records import RESULTS_KEPT
from edge_agent.visit_states import DEVICE_VISIT, DeviceVisitEvent, DeviceVisitState
from sojourn import parts
from sojourn.errors import UnexpectedEvent
from sojourn.node.machine import LinkUp, Pulled, PullFailed, Received, TimerFired, WorkDone, WorkFailed, WorkProgress
from sojourn.protocol.messages import Accepted, Cancel, Discarded, Prepare
from tests.edge_agent.agent_bench import EDGE, EPOCH, KIT, MODEL, OFFER, Bench, trained, visit, visit_id
from tests.sojourn.node.table_rows import rows_taken
from tests.sojourn.protocol.examples import TASK
from tests.there import there

At, On = DeviceVisitState, DeviceVisitEvent
OFFERED = msgspec.structs.replace(OFFER, objectives=("sgd", "dyn"))


@pytest.fixture
def stepped(monkeypatch) -> set[tuple[DeviceVisitState, DeviceVisitEvent]]:
    """Return the rows that were used."""
    return rows_taken(monkeypatch, DEVICE_VISIT)


def remembering(**where):
    return msgspec.structs.replace(visit(**where), task=msgspec.structs.replace(TASK, objective=parts.Dyn()))


def state(bench: Bench, **where) -> DeviceVisitState:
    return bench.agent._visits.state_of(visit_id(**where))


@pytest.mark.parametrize("at", DEVICE_VISIT.states)
def test_every_state_handles_every_edge_server_message(at) -> None:
    asked = [On.TAKEN, On.REFUSED] if at == At.NEW else [On.ASKED_AGAIN]
    assert all(DEVICE_VISIT.knows(at, event) for event in [*asked, On.ACCEPTED, On.DISCARDED])


def test_visit_follows_the_states_of_its_table() -> None:
    bench = Bench()
    seen = [state(bench)]
    bench.ask(visit())
    seen.append(state(bench))
    bench.handle(Pulled(KIT.digest))
    bench.handle(Pulled(MODEL.digest))
    seen.append(state(bench))
    bench.finish()
    seen.append(state(bench))
    bench.ask(Accepted(visit_id()))
    seen.append(state(bench))
    assert seen == [At.NEW, At.FETCHING, At.TRAINING, At.TRAINED, At.OVER]


def test_work_done_before_it_started_raises_an_error() -> None:
    bench = Bench()
    bench.ask(visit())
    with pytest.raises(UnexpectedEvent, match="visit on a device: done in state fetching, which allows all fetched"):
        bench.handle(WorkDone("job/1/0/0/1.1", trained()))


def ask_all(bench: Bench, **where) -> None:
    """Send each message that an edge server may send at any time, even after a visit."""
    for message in (visit(**where), Accepted(visit_id(**where)), Discarded(visit_id(**where), "")):
        bench.ask(message)


def test_every_row_is_reached(stepped) -> None:
    bench = Bench(offer=OFFERED)
    bench.ask(Accepted(visit_id()))
    bench.ask(Discarded(visit_id(), ""))
    bench.ask(visit())
    ask_all(bench)  # while fetching
    ask_all(bench)  # over
    bench.take(visit(job="a"))
    ask_all(bench, job="a")  # while training
    bench.take(visit(job="a", attempt=(1, 2)))
    bench.ask(Discarded(visit_id(job="a", attempt=(1, 2)), ""))  # discarded while training
    bench.take(visit(job="b"))
    bench.ask(visit(job="c"))  # busy
    bench.handle(WorkFailed(bench.work, "failed", "it crashed"))
    bench.handle(WorkFailed(bench.work, "failed", "it crashed"))
    ask_all(bench, job="b")  # declined
    bench.ask(visit(job="c"))
    bench.ask(visit(job="c", attempt=(1, 2)))  # superseded while fetching
    bench.handle(PullFailed(MODEL.digest, "gone"))  # and declined: an older refusal is crowded out
    bench.take(visit(job="d"))
    bench.ask(visit(job="d", attempt=(1, 2)))  # superseded while training
    bench.handle(Pulled(KIT.digest))
    bench.handle(Pulled(MODEL.digest))
    bench.finish()
    bench.ask(visit(job="d", attempt=(1, 2)))  # answered from memory
    bench.ask(Discarded(visit_id(job="d", attempt=(1, 2)), ""))
    bench.take(visit(job="e"))
    bench.finish()
    bench.ask(visit(job="e", attempt=(1, 2)))  # superseded when trained
    bench.ask(Cancel(visit_id(job="e", attempt=(1, 2))))
    bench.take(remembering())
    bench.take(remembering(round_=2))
    bench.finish(memory=True)
    bench.take(remembering(round_=3))
    bench.ask(remembering(round_=3))
    bench.ask(Accepted(visit_id(round_=3)))
    bench.take(remembering(round_=3, attempt=(1, 2)))
    bench.ask(remembering(round_=3, attempt=(1, 3)))  # superseded while waiting
    bench.handle(Pulled(KIT.digest))
    bench.handle(Pulled(MODEL.digest))
    bench.ask(Cancel(visit_id(round_=3, attempt=(1, 3))))  # cancelled while waiting
    bench.take(remembering(round_=4))
    bench.handle(TimerFired(), 1000.0)  # no reply to the result of round 2
    bench.finish(1000.0)
    bench.ask(Accepted(visit_id(round_=4)))
    for number in range(RESULTS_KEPT + 1):
        bench.take(visit(job=f"job-{number}"))
        bench.finish()
    bench.ask(remembering(round_=5))
    twin = Agent("d", OFFER)  # the owner has changed the settings
    twin.restore(bench.agent.snapshot())
    twin.start(0.0)
    signed = {row for row in DEVICE_VISIT.rows if row[1] == DeviceVisitEvent.MANDATE_OVER}  # `test_mandates` has these
    assert {row for row in DEVICE_VISIT.rows if row not in stepped} == signed


@pytest.mark.parametrize("seed", range(10))
def test_random_events_never_leave_the_table(seed) -> None:
    draw = random.Random(seed)
    bench = Bench(offer=OFFERED)
    for now in range(300):
        where = {"attempt": (1, draw.randint(1, 3)), "round_": draw.randint(1, 3), "job": draw.choice("ab")}
        names = visit_id(**where)
        asked = draw.choice([visit, remembering])(**where)
        messages = [asked, asked, Accepted(names), Cancel(names), Discarded(names, ""), Prepare("a", KIT, TASK)]
        received = [Received(EDGE, EPOCH, message) for message in messages]
        blobs = [Pulled(KIT.digest), Pulled(MODEL.digest), PullFailed(MODEL.digest, "gone")]
        bench.handle(draw.choice([*received, *blobs, blobs[0], blobs[1], TimerFired(), LinkUp()]), float(now))
        if (
            bench.agent._visits.trains(bench.work or "")
            and state_of_active(bench) == At.TRAINING
            and draw.random() < 0.5
        ):
            key = bench.work
            failed = [WorkFailed(key, reason, "") for reason in ("failed", "hot")]
            bench.handle(
                draw.choice([WorkProgress(key, 1, 2), *failed, WorkDone(key, trained(memory=True))]), float(now)
            )


def state_of_active(bench: Bench) -> DeviceVisitState:
    return there(bench.agent._visits.active).state
