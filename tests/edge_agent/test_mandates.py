"""A device with operators' keys: whatever a server asks, only what was signed is done, and only while it holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from edge_agent.agent import Agent
from edge_agent.mandate_records import MANDATES_KEPT, ClockSeen, MandateEnded, MandateTaken
from edge_agent.mandates import LOOK_EVERY, Mandates, whose_word
from edge_agent.records import VisitTaken
from edge_agent.training.work import Train, Trained, Warm
from sojourn.node.machine import Append, Did, Do, Pull, Pulled, Received, Undo, Woke
from sojourn.parts import Training
from sojourn.protocol.mandate_messages import Recall
from sojourn.protocol.messages import Declined, Prepare, Visit, Visited
from sojourn.protocol.topics import Address
from sojourn.store.blobs import ref_of
from tests.edge_agent.agent_bench import EDGE, EPOCH, KIT, MODEL, OFFER, RESULT, Bench, visit
from tests.sojourn.protocol.examples import TASK
from tests.sojourn.protocol.mandates import DAY, NOW, key_of, signed, withdrawn
from tests.sojourn.store.replays import sends

KEYS = {key_of("ann").public: "ann", key_of("ben").public: "ben"}


class Clock:
    """A clock on the wall that somebody sets."""

    def __init__(self) -> None:
        self.shows = NOW + 60

    def __call__(self) -> float:
        return self.shows


class Guarded(Bench):
    """An agent with keys, at the site `e`, on a bench."""

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
        """The answer to a visit that is not done, of which nothing is fetched."""
        effects = self.ask(message, **how)
        assert not [it for it in effects if isinstance(it, Pull | Do)]
        assert not [it for it in effects if isinstance(it, Append) and isinstance(it.record, VisitTaken)]
        (answer,) = sends(effects)
        assert isinstance(answer, Declined)
        return answer


def asked(by="ann", attempt=(1, 1), round_=1, task=TASK, where: dict[str, Any] | None = None, **terms) -> Visit:
    """A visit with a mandate for it."""
    it = visit(attempt, round_=round_, **(where or {}))
    return msgspec.structs.replace(it, task=task, mandate=signed(by, **({"kit": KIT.digest} | terms)))


def records(effects) -> list[Any]:
    return [effect.record for effect in effects if isinstance(effect, Append)]


def test_without_keys_nothing_is_demanded_and_nothing_is_kept() -> None:
    bench = Bench()
    effects = bench.ask(asked("eve"))
    assert [type(it).__name__ for it in records(effects)] == ["VisitTaken"]
    assert bench.agent.state.mandate_book is msgspec.UNSET
    assert "none demanded" in whose_word({})


def test_a_signed_visit_is_done_and_its_mandate_kept_once() -> None:
    bench = Guarded()
    first, taken = records(bench.ask(asked()))
    assert first == MandateTaken("job", 5, "ann", signed(kit=KIT.digest), NOW + DAY, NOW + 60)
    assert taken.order.mandate is msgspec.UNSET
    bench.tell(Pulled(KIT.digest))
    assert bench.tell(Pulled(MODEL.digest)) == [Do("job/1/0/0/1.1", Train(visit(), {}))]
    assert [type(message) for message in sends(bench.finish())] == [Visited]
    assert [type(it).__name__ for it in records(bench.ask(asked(round_=2)))] == ["VisitTaken"]
    held = bench.agent.state.mandates.held["job"]
    assert (held.by, held.visits, held.ended) == ("ann", 1, "")
    assert whose_word(KEYS) == "only what one of these signed is done here: ann, ben"


def test_a_visit_without_a_mandate_is_declined_in_words_that_old_edge_servers_know() -> None:
    answer = Guarded().refused(visit())
    assert (answer.reason, answer.detail[:10]) == ("unsupported", "no mandate")


OTHER = msgspec.structs.replace(TASK, training=Training(epochs=50))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (asked("eve"), "not signed with a key of an operator"),
        (asked(fleet="other"), "it is for the fleet 'other'"),
        (asked(job="other"), "it is for the job 'other'"),
        (asked(kit=bytes(32)), "another kit"),
        (asked(task=OTHER), "training.epochs 50, not 1"),
        (asked(round_=4), "it ends with round 3"),
        (asked(sites=("hall",)), "it is for hall, and not for e and e"),
        (asked(issued=NOW - DAY, ends=NOW), "its time is over"),
    ],
)
def test_what_was_not_signed_is_declined_by_name_before_anything_is_fetched(message, why) -> None:
    answer = Guarded().refused(message)
    assert answer.reason == "mandate"
    assert why in answer.detail


def test_bytes_that_are_no_mandate_and_widened_ones_are_declined() -> None:
    good = asked()
    assert not isinstance(good.mandate, msgspec.UnsetType)
    table = msgspec.msgpack.decode(good.mandate.mandate) | {"rounds": 1000}
    wide = msgspec.structs.replace(good.mandate, mandate=msgspec.msgpack.encode(table))
    assert "not signed" in Guarded().refused(msgspec.structs.replace(good, mandate=wide)).detail
    torn = msgspec.structs.replace(good.mandate, mandate=b"torn")
    assert "cannot be read" in Guarded().refused(msgspec.structs.replace(good, mandate=torn)).detail


def test_an_edge_server_of_another_name_cannot_use_a_mandate_for_this_site_nor_this_device_one_for_another() -> None:
    message = asked(sites=("e",))
    assert "not for f and e" in Guarded().refused(message, sender=Address("edge", "f")).detail
    assert sends(Guarded().ask(message)) == []
    # A broker in wrong hands lets anybody write under any name: the device's own settings say where it is.
    assert "not for e and g" in Guarded(sites=("g",)).refused(message).detail
    assert "does not know its site" in Guarded(sites=()).refused(message).detail


def test_a_worker_is_not_made_ready_with_a_graph_that_was_not_signed() -> None:
    bench = Guarded()
    assert bench.ask(Prepare("job", KIT, TASK)) == []
    assert bench.ask(Prepare("job", KIT, TASK, signed("eve", kit=KIT.digest))) == []
    assert bench.ask(Prepare("job", KIT, OTHER, signed(kit=KIT.digest))) == []
    assert bench.ask(Prepare("job", KIT, TASK, signed(kit=KIT.digest))) == [Pull(KIT, EDGE)]
    assert bench.tell(Pulled(KIT.digest)) == [Do("warm", Warm(KIT, TASK))]


def test_a_device_gives_as_many_results_as_were_signed() -> None:
    bench = Guarded()
    for attempt in (1, 2):
        bench.ask(asked(attempt=(1, attempt), visits=2))
        bench.tell(Pulled(KIT.digest))
        bench.tell(Pulled(MODEL.digest))
        bench.finish()
    assert "2 results were given under it, and 2 may be" in bench.refused(asked(attempt=(1, 3), visits=2)).detail
    assert sends(bench.ask(asked(attempt=(1, 3), visits=2, serial=6))) == []  # an operator signed for more


def test_of_a_job_only_the_newest_mandate_holds() -> None:
    bench = Guarded()
    bench.ask(asked(serial=7))
    assert "the mandate 7 has taken its place" in bench.refused(asked(attempt=(1, 2), serial=6)).detail


@pytest.mark.parametrize("jump", [DAY, 10 * 365 * DAY])
def test_when_its_time_is_over_training_ends_and_setting_the_clock_back_revives_nothing(jump) -> None:
    bench = Guarded()
    bench.take(asked())
    assert bench.agent.wake_at() == 0.0  # a sign of life
    bench.tell(Woke())
    bench.clock.shows = NOW + jump
    effects = bench.tell(Woke(), LOOK_EVERY)
    ended = records(effects)[0]
    assert ended == MandateEnded("job", 5, "its time is over", NOW + DAY, NOW + jump)
    assert Undo("job/1/0/0/1.1") in effects
    assert [message.reason for message in sends(effects) if isinstance(message, Declined)] == ["mandate"]
    bench.clock.shows = NOW + 60
    assert "its time is over" in bench.refused(asked(attempt=(1, 2))).detail
    assert sends(bench.ask(asked(attempt=(1, 2), serial=6, ends=NOW + jump + 1))) == []  # another one, signed since


def test_the_latest_time_that_was_seen_counts_across_restarts() -> None:
    bench = Guarded()
    bench.take(asked())
    bench.finish()
    bench.clock.shows = NOW + DAY - 10
    assert ClockSeen(NOW + DAY - 10) in records(bench.tell(Woke(), LOOK_EVERY))
    bench.clock.shows = 0.0  # the battery of the clock is empty
    twin = bench.replayed()
    assert twin.state.mandates.seen == NOW + DAY - 10
    short = asked(attempt=(1, 2), serial=6, ends=NOW + DAY - 20)
    effects = twin.handle(_received(short), 0.0)
    assert "its time is over" in sends(effects)[0].detail


def test_nothing_is_trained_whose_time_ended_on_the_way() -> None:
    bench = Guarded()
    bench.ask(asked())
    bench.tell(Pulled(KIT.digest))
    bench.clock.shows = NOW + DAY
    effects = bench.tell(Pulled(MODEL.digest))
    assert not [it for it in effects if isinstance(it, Do)]
    assert [message.reason for message in sends(effects)] == ["mandate"]


def test_a_result_that_waits_does_not_leave_when_its_mandate_has_ended() -> None:
    bench = Guarded()
    bench.take(asked())
    bench.finish()
    bench.clock.shows = NOW + DAY
    bench.tell(Woke(), LOOK_EVERY)
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
def test_more_than_was_signed_does_not_leave_whatever_the_worker_says(more) -> None:
    bench = Guarded()
    bench.take(asked())
    effects = bench.tell(Did(bench.work, more))
    (answer,) = sends(effects)
    assert isinstance(answer, Declined)
    assert answer.reason == "mandate"
    assert bench.agent.state.held == {}


def test_a_withdrawal_stops_deletes_and_is_remembered() -> None:
    bench = Guarded()
    bench.take(asked())
    effects = bench.ask(Recall(withdrawn("ben")))
    assert Undo("job/1/0/0/1.1") in effects
    assert records(effects)[0] == MandateEnded("job", 5, "withdrawn by ben", NOW + DAY, NOW + 60, True)
    assert (bench.agent.state.held, bench.agent.live()) == ({}, set())
    assert "withdrawn by ben" in bench.refused(asked(attempt=(1, 2))).detail
    assert bench.ask(Recall(withdrawn("ben"))) == []  # heard again
    assert sends(bench.ask(asked(attempt=(1, 2), serial=6))) == []


def test_a_withdrawal_that_comes_before_the_mandate_counts_and_one_that_nobody_signed_does_not() -> None:
    bench = Guarded()
    bench.ask(Recall(withdrawn("eve")))
    bench.ask(Recall(withdrawn(fleet="other")))
    assert bench.agent.state.mandates.held == {}
    bench.ask(Recall(withdrawn()))
    assert "withdrawn by ann" in bench.refused(asked()).detail


def test_every_step_of_a_visit_can_be_ended_by_a_withdrawal() -> None:
    for steps in range(4):
        bench = Guarded()
        bench.ask(asked())
        for digest in [KIT.digest, MODEL.digest][:steps]:
            bench.tell(Pulled(digest))
        if steps == 3:
            bench.finish()
        bench.ask(Recall(withdrawn()))
        assert bench.agent.state.held == {}


def test_mandates_of_a_key_that_is_no_longer_trusted_end_with_the_next_start() -> None:
    bench = Guarded()
    bench.take(asked())
    twin = Agent("d", OFFER, mandates=Mandates("fleet", {key_of("ben").public: "ben"}, frozenset(), bench.clock))
    twin.restore(bench.agent.snapshot())
    effects = twin.start(0.0)
    assert "its key is no longer trusted here" in str(records(effects)[0])
    assert not [it for it in effects if isinstance(it, Do)]
    (answer,) = sends(effects)
    assert answer.reason == "mandate"


def test_an_interrupted_visit_goes_on_after_a_restart_while_its_mandate_holds() -> None:
    bench = Guarded()
    bench.take(asked())
    twin = bench.replayed()
    assert sends(twin.start(0.0)) == []
    assert twin.state.held


def test_a_visit_that_was_taken_before_there_were_keys_is_not_done_after() -> None:
    bench = Bench()
    bench.take(visit())
    twin = Agent("d", OFFER, mandates=Mandates("fleet", KEYS, frozenset(), Clock()))
    twin.restore(bench.agent.snapshot())
    assert [message.reason for message in sends(twin.start(0.0))] == ["mandate"]


def test_withdrawn_mandates_are_not_crowded_out_while_they_might_hold() -> None:
    bench = Guarded()
    for number in range(MANDATES_KEPT):
        bench.ask(Recall(withdrawn(job=f"job-{number}")))
    assert "keeps 64 mandates already" in bench.refused(asked()).detail
    assert "withdrawn" in bench.refused(asked(job="job-0", where={"job": "job-0"})).detail
    bench.clock.shows = NOW + 2 * DAY
    bench.ask(asked(ends=NOW + 3 * DAY))
    assert "job" in bench.agent.state.mandates.held


def _received(message):
    return Received(EDGE, EPOCH, message)
