"""A device with operators' keys performs only signed jobs, and only while their mandates are in force."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edge_agent.agent import Agent
from edge_agent.mandates import CLOCK_CHECK_SECONDS, Mandates, describe_trusted_keys
from edge_agent.records import MANDATES_KEPT, ClockSeen, MandateEnded, MandateTaken, VisitTaken
from edge_agent.training.messages import Train, Trained, Warm
from sojourn.node.machine import Append, CancelWork, Pull, Pulled, Received, StartWork, TimerFired, WorkDone
from sojourn.parts import Training
from sojourn.protocol.mandates import Recall
from sojourn.protocol.messages import Declined, Prepare, Visit, Visited
from sojourn.protocol.topics import Address
from sojourn.store.blobs import ref_of
from tests.edge_agent.agent_bench import EDGE, EPOCH, KIT, MODEL, OFFER, RESULT, Bench, visit
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.protocol.mandates import DAY, NOW, key_of, signed, withdrawn
from tests.sojourn.store.replays import sends

KEYS = {key_of("ann").public: "ann", key_of("ben").public: "ben"}


class Clock:
    """A system clock that the test sets."""

    def __init__(self) -> None:
        self.shows = NOW + 60

    def __call__(self) -> float:
        return self.shows


class Guarded(Bench):
    """An agent with keys, at the site `e`."""

    def __init__(self, keys=KEYS, sites=("e",), **kwargs) -> None:
        self.clock = Clock()
        mandates = Mandates("fleet", keys, frozenset(sites), self.clock)
        super().__init__(mandates=mandates, **kwargs)

    def replayed(self, cut=0) -> Agent:
        twin = Agent("d", self.offer, mandates=Mandates("fleet", KEYS, frozenset({"e"}), self.clock))
        for record in self.records:
            twin.apply(msgspec.msgpack.decode(record, type=twin.record_form))
        return twin

    def refused(self, message: Visit, **how) -> Declined:
        """Return the refusal of a visit, of which nothing is fetched."""
        effects = self.ask(message, **how)
        assert not [it for it in effects if isinstance(it, Pull | StartWork)]
        assert not [it for it in effects if isinstance(it, Append) and isinstance(it.record, VisitTaken)]
        (answer,) = sends(effects)
        assert isinstance(answer, Declined)
        return answer


def asked(by="ann", attempt=(1, 1), round_=1, task=TASK, where: dict[str, Any] | None = None, **terms) -> Visit:
    """Return a visit with its mandate."""
    it = visit(attempt, round_=round_, **(where or {}))
    return msgspec.structs.replace(it, task=task, mandate=signed(by, **({"kit": KIT.digest} | terms)))


def records(effects) -> list[Any]:
    return [effect.record for effect in effects if isinstance(effect, Append)]


def test_without_keys_no_mandate_is_required_or_kept() -> None:
    bench = Bench()
    effects = bench.ask(asked("eve"))
    assert [type(it).__name__ for it in records(effects)] == ["VisitTaken"]
    assert not bench.agent.state.mandates.held
    assert "not required" in describe_trusted_keys({})


def test_signed_visit_is_done_and_its_mandate_stored_once() -> None:
    bench = Guarded()
    first, taken = records(bench.ask(asked()))
    assert first == MandateTaken("job", 5, "ann", signed(kit=KIT.digest), NOW + DAY, NOW + 60)
    assert taken.order.mandate is None
    bench.handle(Pulled(KIT.digest))
    assert bench.handle(Pulled(MODEL.digest)) == [StartWork("job/1/0/0/1.1", Train(visit(), {}))]
    assert [type(message) for message in sends(bench.finish())] == [Visited]
    assert [type(it).__name__ for it in records(bench.ask(asked(round_=2)))] == ["VisitTaken"]
    held = bench.agent.state.mandates.held["job"]
    assert (held.by, held.visits, held.ended) == ("ann", 1, "")
    assert describe_trusted_keys(KEYS) == "required, signed by one of: ann, ben"


def test_visit_without_mandate_is_declined_as_unsupported() -> None:
    answer = Guarded().refused(visit())
    assert (answer.reason, answer.detail[:10]) == ("unsupported", "no mandate")


OTHER = msgspec.structs.replace(TASK, training=Training(epochs=50))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (asked("eve"), "not signed with the key of a trusted operator"),
        (asked(fleet="other"), "the mandate is for the fleet 'other'"),
        (asked(job="other"), "it is for the job 'other'"),
        (asked(kit=bytes(32)), "another kit"),
        (asked(task=OTHER), "training.epochs 50, not 1"),
        (asked(round_=4), "the mandate ends with round 3"),
        (asked(sites=("hall",)), "the mandate is for hall; the order came from e, and this device belongs to e"),
        (asked(issued=NOW - DAY, ends=NOW), "the mandate has expired"),
    ],
)
def test_unsigned_content_is_declined_by_name_before_fetching(message, why) -> None:
    answer = Guarded().refused(message)
    assert answer.reason == "mandate"
    assert why in answer.detail


def test_corrupt_or_widened_mandate_is_declined() -> None:
    good = asked()
    assert good.mandate is not None
    table = msgspec.msgpack.decode(good.mandate.mandate) | {"rounds": 1000}
    wide = msgspec.structs.replace(good.mandate, mandate=msgspec.msgpack.encode(table))
    assert "not signed" in Guarded().refused(msgspec.structs.replace(good, mandate=wide)).detail
    torn = msgspec.structs.replace(good.mandate, mandate=b"torn")
    assert "cannot be read" in Guarded().refused(msgspec.structs.replace(good, mandate=torn)).detail


def test_mandate_of_another_site_is_declined() -> None:
    message = asked(sites=("e",))
    assert "came from f, and this device belongs to e" in Guarded().refused(message, sender=Address("edge", "f")).detail
    assert sends(Guarded().ask(message)) == []
    # A compromised broker lets any client write under any name: only the device's settings name its site.
    assert "came from e, and this device belongs to g" in Guarded(sites=("g",)).refused(message).detail
    assert "this device has no site" in Guarded(sites=()).refused(message).detail


def test_unsigned_graph_does_not_warm_up_a_worker() -> None:
    bench = Guarded()
    assert bench.ask(Prepare("job", KIT, TASK)) == []
    assert bench.ask(Prepare("job", KIT, TASK, signed("eve", kit=KIT.digest))) == []
    assert bench.ask(Prepare("job", KIT, OTHER, signed(kit=KIT.digest))) == []
    assert bench.ask(Prepare("job", KIT, TASK, signed(kit=KIT.digest))) == [Pull(KIT, EDGE)]
    assert bench.handle(Pulled(KIT.digest)) == [StartWork("warm", Warm(KIT, TASK))]


def test_device_gives_at_most_the_signed_number_of_results() -> None:
    bench = Guarded()
    for attempt in (1, 2):
        bench.ask(asked(attempt=(1, attempt), visits=2))
        bench.handle(Pulled(KIT.digest))
        bench.handle(Pulled(MODEL.digest))
        bench.finish()
    assert "2 results were sent under it, and it allows 2" in bench.refused(asked(attempt=(1, 3), visits=2)).detail
    assert sends(bench.ask(asked(attempt=(1, 3), visits=2, serial=6))) == []  # an operator signed for more


def test_only_the_newest_mandate_of_a_job_is_valid() -> None:
    bench = Guarded()
    bench.ask(asked(serial=7))
    assert "the mandate 7 replaced it" in bench.refused(asked(attempt=(1, 2), serial=6)).detail


@pytest.mark.parametrize("jump", [DAY, 10 * 365 * DAY])
def test_expired_mandate_ends_training_despite_clock_rollback(jump) -> None:
    bench = Guarded()
    bench.take(asked())
    assert bench.agent.wake_at() == 0.0  # a progress report
    bench.handle(TimerFired())
    bench.clock.shows = NOW + jump
    effects = bench.handle(TimerFired(), CLOCK_CHECK_SECONDS)
    ended = records(effects)[0]
    assert ended == MandateEnded("job", 5, "expired", NOW + DAY, NOW + jump)
    assert CancelWork("job/1/0/0/1.1") in effects
    assert [message.reason for message in sends(effects) if isinstance(message, Declined)] == ["mandate"]
    bench.clock.shows = NOW + 60
    assert "expired" in bench.refused(asked(attempt=(1, 2))).detail
    assert sends(bench.ask(asked(attempt=(1, 2), serial=6, ends=NOW + jump + 1))) == []  # a newer mandate


def test_latest_seen_time_survives_restarts() -> None:
    bench = Guarded()
    bench.take(asked())
    bench.finish()
    bench.clock.shows = NOW + DAY - 10
    assert ClockSeen(NOW + DAY - 10) in records(bench.handle(TimerFired(), CLOCK_CHECK_SECONDS))
    bench.clock.shows = 0.0  # the battery of the clock is empty
    twin = bench.replayed()
    assert twin.state.mandates.seen == NOW + DAY - 10
    short = asked(attempt=(1, 2), serial=6, ends=NOW + DAY - 20)
    effects = twin.handle(_received(short), 0.0)
    assert "expired" in sends(effects)[0].detail


def test_mandate_that_expires_while_fetching_prevents_training() -> None:
    bench = Guarded()
    bench.ask(asked())
    bench.handle(Pulled(KIT.digest))
    bench.clock.shows = NOW + DAY
    effects = bench.handle(Pulled(MODEL.digest))
    assert not [it for it in effects if isinstance(it, StartWork)]
    assert [message.reason for message in sends(effects)] == ["mandate"]


def test_pending_result_is_dropped_when_its_mandate_expires() -> None:
    bench = Guarded()
    bench.take(asked())
    bench.finish()
    bench.clock.shows = NOW + DAY
    bench.handle(TimerFired(), CLOCK_CHECK_SECONDS)
    assert bench.agent.state.held == {}
    assert RESULT.digest not in bench.agent.live()


@pytest.mark.parametrize(
    "more",
    [
        Trained({"model": ref_of(bytes(1001), "float32")}, 5, {}, None, {}),
        Trained({"model": RESULT, "samples": RESULT}, 5, {}, None, {}),
        Trained({"model": RESULT}, 5, {}, (0.5,), {}),
    ],
)
def test_results_beyond_the_mandate_are_not_sent(more) -> None:
    bench = Guarded()
    bench.take(asked())
    effects = bench.handle(WorkDone(bench.work, more))
    (answer,) = sends(effects)
    assert isinstance(answer, Declined)
    assert answer.reason == "mandate"
    assert bench.agent.state.held == {}


def test_withdrawal_stops_deletes_and_is_remembered() -> None:
    bench = Guarded()
    bench.take(asked())
    effects = bench.ask(Recall(withdrawn("ben")))
    assert CancelWork("job/1/0/0/1.1") in effects
    assert records(effects)[0] == MandateEnded("job", 5, "withdrawn by ben", NOW + DAY, NOW + 60, True)
    assert (bench.agent.state.held, bench.agent.live()) == ({}, set())
    assert "withdrawn by ben" in bench.refused(asked(attempt=(1, 2))).detail
    assert bench.ask(Recall(withdrawn("ben"))) == []  # received again
    assert sends(bench.ask(asked(attempt=(1, 2), serial=6))) == []


def test_early_withdrawal_counts_and_unsigned_one_does_not() -> None:
    bench = Guarded()
    bench.ask(Recall(withdrawn("eve")))
    bench.ask(Recall(withdrawn(fleet="other")))
    assert bench.agent.state.mandates.held == {}
    bench.ask(Recall(withdrawn()))
    assert "withdrawn by ann" in bench.refused(asked()).detail


def test_withdrawal_can_end_every_step_of_a_visit() -> None:
    for steps in range(4):
        bench = Guarded()
        bench.ask(asked())
        for digest in [KIT.digest, MODEL.digest][:steps]:
            bench.handle(Pulled(digest))
        if steps == 3:
            bench.finish()
        bench.ask(Recall(withdrawn()))
        assert bench.agent.state.held == {}


def test_mandates_of_an_untrusted_key_end_at_the_next_start() -> None:
    bench = Guarded()
    bench.take(asked())
    twin = Agent("d", OFFER, mandates=Mandates("fleet", {key_of("ben").public: "ben"}, frozenset(), bench.clock))
    twin.restore(bench.agent.snapshot())
    effects = twin.start(0.0)
    assert "its key is no longer trusted on this device" in str(records(effects)[0])
    assert not [it for it in effects if isinstance(it, StartWork)]
    (answer,) = sends(effects)
    assert answer.reason == "mandate"


def test_interrupted_visit_resumes_while_its_mandate_is_valid() -> None:
    bench = Guarded()
    bench.take(asked())
    twin = bench.replayed()
    assert sends(twin.start(0.0)) == []
    assert twin.state.held


def test_unsigned_visit_is_dropped_after_keys_are_configured() -> None:
    bench = Bench()
    bench.take(visit())
    twin = Agent("d", OFFER, mandates=Mandates("fleet", KEYS, frozenset(), Clock()))
    twin.restore(bench.agent.snapshot())
    assert [message.reason for message in sends(twin.start(0.0))] == ["mandate"]


def test_withdrawn_mandates_are_kept_while_they_could_be_valid() -> None:
    bench = Guarded()
    for number in range(MANDATES_KEPT):
        bench.ask(Recall(withdrawn(job=f"job-{number}")))
    assert "already stores 64 mandates" in bench.refused(asked()).detail
    assert "withdrawn" in bench.refused(asked(job="job-0", where={"job": "job-0"})).detail
    bench.clock.shows = NOW + 2 * DAY
    bench.ask(asked(ends=NOW + 3 * DAY))
    assert "job" in bench.agent.state.mandates.held


def _received(message):
    return Received(EDGE, EPOCH, message)
