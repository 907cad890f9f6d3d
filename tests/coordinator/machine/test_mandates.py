"""Jobs wait for an operator's signature, go out with it, and stop when it is withdrawn."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.machine.coordinator import Coordinator
from coordinator.machine.mandate_requests import compilers
from coordinator.machine.sites import ReadRoster, RosterRead
from coordinator.machine.trust import Trust
from coordinator.mandate_records import JobMandated, MandateWithdrawn
from coordinator.records import JobEnded
from coordinator.rounds.orders import all_tasks
from coordinator.rounds.planning import PlanRound
from sojourn.node.machine import Present, Pulled
from sojourn.parts import Training
from sojourn.protocol.abilities import ABILITIES, MANDATE
from sojourn.protocol.job_messages import Continue
from sojourn.protocol.mandate_messages import KitTold, Normalisation, ReadKit, Recall, SignJob, WithdrawJob
from sojourn.protocol.messages import Jobs, Refused, Roster, Stop, Submit, Tour
from sojourn.protocol.wire import Epoch, Member
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import BOOT, BORN, KIT, OFFER, OPERATOR, Bench, records, site, text
from tests.sojourn.protocol.mandates import DAY, NOW, key_of, signed, withdrawn
from tests.sojourn.store.replays import replayed, sends

KEYS = {key_of("ann").public: "ann"}


class Signed(Bench):
    """A coordinator that lets no job go out without a mandate."""

    def __init__(self, keys=KEYS) -> None:
        super().__init__()
        self.keys = keys
        self.cloud = self._new()

    def _new(self) -> Coordinator:
        return Coordinator("c", fleet="fleet", trust=Trust(mandate_keys=self.keys), wall=NOW)

    def replayed(self, cut=0) -> Coordinator:
        return replayed(self._new(), self.records, cut)

    def compiled(self, **changes) -> None:
        """A job that waits for its signature."""
        self.join("s1", ("a",))
        self.join("s2", ("b",))
        self.hear(OPERATOR, Submit("t", text(**changes)))
        self.compile(normalisation=Normalisation((1.0,), (2.0,)))

    def sign(self, by="ann", now=0.0, ticket="sign", **terms) -> list[Any]:
        return self.hear(OPERATOR, SignJob(ticket, self.mandate(by, **terms)), now)

    def mandate(self, by="ann", **terms):
        tasks = all_tasks(self.state.settings)
        return signed(by, **({"kit": KIT.digest, "tasks": tasks, "rounds": 2} | terms))

    @property
    def state(self):
        return self.cloud.state.jobs["job"]


WAITS = "waiting for a signature: sojourn job sign job --key operator.key"


def test_a_job_waits_for_its_signature_and_says_what_to_type() -> None:
    bench = Signed()
    bench.compiled()
    assert (bench.state.status, bench.state.detail, bench.work) == ("waiting", WAITS, {})
    assert bench.cloud._queue.step(bench.state) == "unsigned"
    assert bench.cloud.wake_at() is None
    effects = bench.sign()
    assert records(effects) == [JobMandated]
    assert isinstance(sends(effects)[-1], Jobs)
    tours = [message for message in sends(bench.plan()) if isinstance(message, Tour)]
    assert [tour.mandate for tour in tours] == [bench.mandate()] * 2


def test_without_keys_jobs_go_out_as_ever_and_with_a_mandate_if_they_have_one() -> None:
    bench = Signed({})
    bench.compiled()
    bench.sign("eve")  # devices verify it, this coordinator cannot
    assert [message.mandate for message in sends(bench.plan()) if isinstance(message, Tour)] == [
        bench.mandate("eve")
    ] * 2
    plain = Bench()
    assert {message.mandate for message in sends(plain.running()) if isinstance(message, Tour)} == {msgspec.UNSET}


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"by": "eve"}, "not signed with a key of this coordinator's mandate_keys_file"),
        ({"fleet": "other"}, "for the fleet 'other'"),
        ({"issued": NOW - DAY, "ends": NOW}, "look at your clock"),
        ({"kit": bytes(32)}, "is for the kit 000000000000"),
        ({"tasks": None}, "does not hold for all that the job asks"),
    ],
)
def test_a_mandate_that_devices_would_refuse_is_refused_here(terms, why) -> None:
    bench = Signed()
    bench.compiled()
    if "tasks" in terms:
        task = all_tasks(bench.state.settings)[0]
        terms = {"tasks": (msgspec.structs.replace(task, training=Training(epochs=9)),)}
    (answer,) = sends(bench.sign(**terms))
    assert isinstance(answer, Refused)
    assert why in answer.reason
    assert bench.state.mandate is msgspec.UNSET


def test_a_number_that_is_not_higher_is_refused_and_the_same_request_is_answered_again() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign(serial=7)
    assert isinstance(sends(bench.sign(serial=7))[-1], Jobs)
    (answer,) = sends(bench.sign(serial=7, ticket="other"))
    assert "7 is not higher than 7" in answer.reason


def test_a_job_waits_again_when_its_mandate_is_for_fewer_rounds_or_has_ended() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign(rounds=1)
    bench.plan()
    bench.toured(0, "s1")
    bench.toured(1, "s2")
    bench.close()
    assert bench.state.detail == (
        "waiting for a new signature: its mandate ends with round 1: sojourn job sign job --key operator.key"
    )
    bench.sign(serial=6, ticket="more", now=1.0)
    assert [type(work) for work in bench.work.values() if isinstance(work, PlanRound)] == [PlanRound]
    late = Signed()
    late.compiled()
    late.sign(ends=NOW + 50)
    late.plan()
    late.toured(0, "s1", now=60.0)
    late.toured(1, "s2", now=60.0)
    late.close(now=60.0)
    assert "its mandate ended 2027-01-15" in late.state.detail


def test_a_job_that_was_signed_with_a_key_that_is_gone_waits_for_another() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign()
    bench.keys = {key_of("ben").public: "ben"}
    bench.cloud = bench.replayed()
    bench.work.clear()
    bench.note(bench.cloud.start(0.0))
    assert "its key is no longer in this coordinator's mandate_keys_file" in bench.state.detail
    assert isinstance(sends(bench.sign("ben", serial=6, ticket="again"))[-1], Jobs)
    assert bench.cloud._queue.step(bench.state) != "unsigned"


def test_another_job_has_its_turn_while_one_waits_for_its_signature_and_a_restart_waits_on() -> None:
    bench = Signed()
    bench.compiled()
    bench.hear(OPERATOR, Submit("t2", text("next")))
    assert [work.name for work in bench.work.values()] == ["next"]
    bench.cloud = bench.replayed()
    bench.work.clear()
    bench.note(bench.cloud.start(0.0))
    assert bench.state.detail == WAITS
    assert records(bench.hear(OPERATOR, Stop("s", "job"))) == [JobEnded]
    assert bench.state.status == "stopped"


def test_the_kit_is_told_with_what_it_was_made_of() -> None:
    bench = Signed()
    bench.hear(OPERATOR, Submit("t", text()))
    (answer,) = sends(bench.hear(OPERATOR, ReadKit("k", "job")))
    assert "it has no kit yet" in answer.reason
    bench.compile(normalisation=Normalisation((1.0,), (2.0,)))
    (answer,) = sends(bench.hear(OPERATOR, ReadKit("k", "job")))
    assert answer == KitTold("k", "job", KIT, Normalisation((1.0,), (2.0,)), compilers(), 0)
    bench.sign(serial=9)
    assert sends(bench.hear(OPERATOR, ReadKit("k", "job")))[0].serial == 9


def test_a_withdrawal_ends_the_job_and_goes_to_all_sites_also_to_those_that_come_later() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign()
    bench.plan()
    effects = bench.hear(OPERATOR, WithdrawJob("w", withdrawn()))
    assert records(effects) == [MandateWithdrawn, JobEnded]
    recalls = [message for message in sends(effects) if isinstance(message, Recall)]
    assert recalls == [Recall(withdrawn())] * 2
    assert bench.state.detail == "its mandate was withdrawn by ann"
    again = bench.tell(Present(site("s3"), Epoch(1, bytes(8)), BORN), 10.0)
    assert Recall(withdrawn()) in sends(again)
    late = bench.tell(Present(site("s4"), Epoch(1, bytes(8)), BORN), DAY)
    assert Recall(withdrawn()) not in sends(late)
    bench.hear(OPERATOR, Continue("c", "job", 5))
    assert "waiting for a new signature" in bench.state.detail
    (answer,) = sends(bench.sign(rounds=5, ticket="again"))
    assert "5 is not higher than 5" in answer.reason


def test_a_withdrawal_that_nobody_signed_is_refused() -> None:
    bench = Signed()
    bench.compiled()
    for it in (withdrawn("eve"), withdrawn(fleet="other")):
        (answer,) = sends(bench.hear(OPERATOR, WithdrawJob("w", it)))
        assert isinstance(answer, Refused)
    assert bench.state.status == "waiting"


def test_a_device_that_demands_a_mandate_is_left_out_of_a_job_without_one_and_said() -> None:
    offer = msgspec.structs.replace(OFFER, abilities=(*ABILITIES, MANDATE))
    bench = Bench()
    bench.join("s1", ("a", "b"))
    members = ref_of(b"demanding")
    bench.hear(site("s1"), Roster(2, members))
    bench.tell(Pulled(members.digest))
    there = (Member("a", BOOT, OFFER), Member("b", BOOT, offer))
    bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, there))
    assert bench.cloud.sites.demanding() == ("b",)
    bench.hear(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    told = bench.cloud.state.jobs["job"].detail
    assert "left out, they do only what an operator signed: sojourn job sign job: b" in told


def test_what_operators_did_is_in_the_log() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign("eve", ticket="bad")
    bench.sign()
    log = bench.cloud.state.audit.entries
    assert [(it.what, it.outcome) for it in log] == [
        ("submit job", "done"),
        ("sign-job job 5", "refused"),
        ("sign-job job 5", "done"),
    ]
