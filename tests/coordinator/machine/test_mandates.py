"""Jobs wait for an operator's signature, are sent with it, and stop when it is withdrawn."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from coordinator.machine.authorization import Trust
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.job_table import JobStep
from coordinator.machine.mandates import compilers
from coordinator.machine.sites import ReadRoster, RosterRead
from coordinator.records import JobEnded, JobMandated, JobWaits, MandateWithdrawn
from coordinator.rounds.orders import all_tasks
from coordinator.rounds.planning import PlanRound
from sojourn.node.machine import Present, Pulled
from sojourn.parts import Training
from sojourn.protocol.mandates import KitDetails, Normalisation, ReadKit, Recall, SignJob, WithdrawJob
from sojourn.protocol.messages import Roster, Tour
from sojourn.protocol.operator_messages import Continue, Jobs, Refused, Stop, Submit
from sojourn.protocol.task import ABILITIES, MANDATE
from sojourn.protocol.wire import Epoch, Member
from sojourn.store.blobs import ref_of
from tests.coordinator.machine.cloud_bench import BOOT, BORN, KIT, OFFER, OPERATOR, Bench, records, site, text
from tests.sojourn.protocol.mandates import DAY, NOW, key_of, signed, withdrawn
from tests.sojourn.store.replays import replayed, sends

KEYS = {key_of("ann").public: "ann"}


class Signed(Bench):
    """A coordinator that sends no job without a mandate."""

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
        self.receive(OPERATOR, Submit("t", text(**changes)))
        self.compile(normalisation=Normalisation((1.0,), (2.0,)))

    def sign(self, by="ann", now=0.0, ticket="sign", **terms) -> list[Any]:
        return self.receive(OPERATOR, SignJob(ticket, self.mandate(by, **terms)), now)

    def mandate(self, by="ann", **terms):
        tasks = all_tasks(self.state.settings)
        return signed(by, **({"kit": KIT.digest, "tasks": tasks, "rounds": 2} | terms))

    @property
    def state(self):
        return self.cloud.state.jobs["job"]


WAITS = "waiting for a signature: sojourn job sign job --key operator.key"


def test_unsigned_job_waits_and_shows_the_command_to_sign() -> None:
    bench = Signed()
    bench.compiled()
    assert (bench.state.status, bench.state.detail, bench.work) == ("waiting", WAITS, {})
    assert bench.cloud._queue.step(bench.state) is JobStep.UNSIGNED
    assert bench.cloud.wake_at() is None
    effects = bench.sign()
    assert records(effects) == [JobMandated]
    assert isinstance(sends(effects)[-1], Jobs)
    tours = [message for message in sends(bench.plan()) if isinstance(message, Tour)]
    assert [tour.mandate for tour in tours] == [bench.mandate()] * 2


def test_jobs_start_without_keys_and_carry_mandates_if_signed() -> None:
    bench = Signed({})
    bench.compiled()
    bench.sign("eve")  # devices verify it, this coordinator cannot
    assert [message.mandate for message in sends(bench.plan()) if isinstance(message, Tour)] == [
        bench.mandate("eve")
    ] * 2
    plain = Bench()
    assert {message.mandate for message in sends(plain.running()) if isinstance(message, Tour)} == {None}


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"by": "eve"}, "not signed with a key of this coordinator's mandate_keys_file"),
        ({"fleet": "other"}, "for the fleet 'other'"),
        ({"issued": NOW - DAY, "ends": NOW}, "check your clock"),
        ({"kit": bytes(32)}, "is for the kit 000000000000"),
        ({"tasks": None}, "does not cover everything that the job requires"),
    ],
)
def test_mandate_that_devices_would_reject_is_refused(terms, why) -> None:
    bench = Signed()
    bench.compiled()
    if "tasks" in terms:
        task = all_tasks(bench.state.settings)[0]
        terms = {"tasks": (msgspec.structs.replace(task, training=Training(epochs=9)),)}
    (answer,) = sends(bench.sign(**terms))
    assert isinstance(answer, Refused)
    assert why in answer.reason
    assert bench.state.mandate is None


def test_mandate_serial_must_increase_except_for_a_repeat() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign(serial=7)
    assert isinstance(sends(bench.sign(serial=7))[-1], Jobs)
    (answer,) = sends(bench.sign(serial=7, ticket="other"))
    assert "7 is not higher than 7" in answer.reason


def test_expired_or_exhausted_mandate_makes_job_wait_again() -> None:
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


def test_job_signed_with_removed_key_waits_for_another() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign()
    bench.keys = {key_of("ben").public: "ben"}
    bench.cloud = bench.replayed()
    bench.work.clear()
    bench.note(bench.cloud.start(0.0))
    assert "its key is no longer in this coordinator's mandate_keys_file" in bench.state.detail
    assert isinstance(sends(bench.sign("ben", serial=6, ticket="again"))[-1], Jobs)
    assert bench.cloud._queue.step(bench.state) is not JobStep.UNSIGNED


def test_unsigned_job_yields_its_turn_and_waits_after_restart() -> None:
    bench = Signed()
    bench.compiled()
    bench.receive(OPERATOR, Submit("t2", text("next")))
    assert [work.name for work in bench.work.values()] == ["next"]
    bench.cloud = bench.replayed()
    bench.work.clear()
    bench.note(bench.cloud.start(0.0))
    assert [work.name for work in bench.work.values()] == ["next"]
    assert bench.state.detail == WAITS
    assert bench.cloud._queue.step(bench.state) is JobStep.UNSIGNED
    assert records(bench.receive(OPERATOR, Stop("s", "job"))) == [JobEnded]
    assert bench.state.status == "stopped"


def test_unsigned_job_continues_when_no_signature_is_required_any_more() -> None:
    bench = Signed()
    bench.compiled()
    bench.keys = {}
    bench.cloud = bench.replayed()
    bench.work.clear()
    assert JobWaits in records(bench.note(bench.cloud.start(0.0)))
    assert bench.cloud._queue.step(bench.state) is JobStep.WAITING
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    assert [type(work) for work in bench.work.values()] == [PlanRound]


def test_kit_is_returned_with_its_normalisation_and_compilers() -> None:
    bench = Signed()
    bench.receive(OPERATOR, Submit("t", text()))
    (answer,) = sends(bench.receive(OPERATOR, ReadKit("k", "job")))
    assert "it has no kit yet" in answer.reason
    bench.compile(normalisation=Normalisation((1.0,), (2.0,)))
    (answer,) = sends(bench.receive(OPERATOR, ReadKit("k", "job")))
    assert answer == KitDetails("k", "job", KIT, Normalisation((1.0,), (2.0,)), compilers(), 0)
    bench.sign(serial=9)
    assert sends(bench.receive(OPERATOR, ReadKit("k", "job")))[0].serial == 9


def test_withdrawal_ends_job_and_reaches_all_and_later_sites() -> None:
    bench = Signed()
    bench.compiled()
    bench.sign()
    bench.plan()
    effects = bench.receive(OPERATOR, WithdrawJob("w", withdrawn()))
    assert records(effects) == [MandateWithdrawn, JobEnded]
    recalls = [message for message in sends(effects) if isinstance(message, Recall)]
    assert recalls == [Recall(withdrawn())] * 2
    assert bench.state.detail == "its mandate was withdrawn by ann"
    again = bench.handle(Present(site("s3"), Epoch(1, bytes(8)), BORN), 10.0)
    assert Recall(withdrawn()) in sends(again)
    late = bench.handle(Present(site("s4"), Epoch(1, bytes(8)), BORN), DAY)
    assert Recall(withdrawn()) not in sends(late)
    bench.receive(OPERATOR, Continue("c", "job", 5))
    assert "waiting for a new signature" in bench.state.detail
    (answer,) = sends(bench.sign(rounds=5, ticket="again"))
    assert "5 is not higher than 5" in answer.reason


def test_unsigned_withdrawal_is_refused() -> None:
    bench = Signed()
    bench.compiled()
    for it in (withdrawn("eve"), withdrawn(fleet="other")):
        (answer,) = sends(bench.receive(OPERATOR, WithdrawJob("w", it)))
        assert isinstance(answer, Refused)
    assert bench.state.status == "waiting"


def test_mandate_only_device_is_skipped_and_reported() -> None:
    offer = msgspec.structs.replace(OFFER, abilities=(*ABILITIES, MANDATE))
    bench = Bench()
    bench.join("s1", ("a", "b"))
    members = ref_of(b"demanding")
    bench.receive(site("s1"), Roster(2, members))
    bench.handle(Pulled(members.digest))
    there = (Member("a", BOOT, OFFER), Member("b", BOOT, offer))
    bench.did(ReadRoster, lambda work: RosterRead(work.site, work.epoch, work.revision, there))
    assert bench.cloud.sites.requiring_signature() == ("b",)
    bench.receive(OPERATOR, Submit("t", text()))
    bench.compile()
    bench.plan()
    detail = bench.cloud.state.jobs["job"].detail
    assert "skipped, they require a signed job: sojourn job sign job: b" in detail


def test_operator_actions_are_in_the_audit_log() -> None:
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
