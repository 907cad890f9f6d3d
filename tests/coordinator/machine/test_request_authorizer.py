"""Operators with keys: each request is signed, permitted for its role, recent, and performed once."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from coordinator.audit_records import KEPT, AuditLog, AuditRecorded
from coordinator.machine.authorization import NO_KEY, SIGNATURE_WINDOW, Trust
from coordinator.machine.coordinator import Coordinator
from sojourn.node.machine import Append, Received, Send
from sojourn.protocol.operator_messages import Continue, Export, Inspect, Jobs, Refused, Remove, Stop, Submit
from sojourn.protocol.operators import (
    Audit,
    AuditEntry,
    InspectAudit,
    OperatorEntry,
    Request,
    SignedRequest,
    faults,
    sign_request,
)
from sojourn.protocol.release_messages import InspectReleases, Steer
from sojourn.protocol.topics import Address
from tests.coordinator.machine.cloud_bench import BOOT, OPERATOR, Bench, text
from tests.sojourn.protocol.mandates import NOW, key_of
from tests.sojourn.store.replays import replayed, sends

ROLES = {"vera": "viewer", "sue": "submitter", "rob": "releaser", "otto": "owner"}
PEOPLE = {name: OperatorEntry(key=key_of(name).public, role=role) for name, role in ROLES.items()}  # type: ignore[arg-type]


SUE = Address("cloud", "sue")


class Desk(Bench):
    """A coordinator whose operators have keys."""

    def __init__(self) -> None:
        super().__init__()
        self.people = dict(PEOPLE)
        self.cloud = self._new()

    def _new(self) -> Coordinator:
        return Coordinator("c", fleet="fleet", trust=Trust(roles=lambda: self.people), wall=NOW)

    def replayed(self, cut=0) -> Coordinator:
        return replayed(self._new(), self.records, cut)

    def by(self, who: str, message: Any, now=0.0, **how) -> Any:
        """Return the answer to a signed request."""
        (answer,) = sends(self.receive(Address("cloud", who), request(who, message, **how), now))
        return answer

    @property
    def log(self) -> list[tuple[str, str, str]]:
        return [(it.who, it.what, it.outcome) for it in self.cloud.state.audit.entries]


def request(who: str, message: Any, key: str | None = None, **changes: Any) -> SignedRequest:
    data = msgspec.msgpack.encode(message)
    plain: dict[str, Any] = {
        "fleet": "fleet", "cloud": "c", "operator": who, "at": NOW, "ticket": message.ticket,
        "what": message.what, "digest": hashlib.sha256(data).digest(),
    }  # fmt: skip
    return SignedRequest(message.ticket, data, sign_request(Request(**(plain | changes)), key_of(key or who)))


def test_missing_operators_file_allows_and_logs_requests() -> None:
    bench = Bench()
    assert isinstance(sends(bench.receive(OPERATOR, Submit("t", text())))[0], Jobs)
    (entry,) = bench.cloud.state.audit.entries
    assert (entry.who, entry.what, entry.outcome, entry.proof) == ("operator", "submit job", "done", None)


def test_operators_file_refuses_and_logs_unsigned_requests() -> None:
    desk = Desk()
    for message in (Submit("t", text()), Inspect("i"), InspectAudit("a")):
        assert sends(desk.receive(OPERATOR, message)) == [Refused(message.ticket, NO_KEY)]
    assert desk.log == [
        ("operator", "submit job", "refused"),
        ("operator", "inspect", "refused"),
        ("operator", "inspect-audit", "refused"),
    ]
    assert desk.cloud.state.jobs == {}


@pytest.mark.parametrize(
    ("message", "may"),
    [
        (Submit("t", text()), {"sue", "otto"}),
        (Stop("t", "job"), {"sue", "otto"}),
        (Continue("t", "job", 3), {"sue", "otto"}),
        (Remove("t", "job"), {"sue", "otto"}),
        (Export("t", "job"), {"sue", "rob", "otto"}),
        (Steer("t", "line", "pause"), {"rob", "otto"}),
        (Inspect("t"), {"vera", "sue", "rob", "otto"}),
        (InspectReleases("t"), {"vera", "sue", "rob", "otto"}),
        (InspectAudit("t"), {"vera", "sue", "rob", "otto"}),
    ],
)
def test_role_limits_requests_and_refusal_names_needed_role(message, may) -> None:
    for who, it in PEOPLE.items():
        answer = Desk().by(who, message)
        denied = isinstance(answer, Refused) and "needs the role" in answer.reason
        assert denied == (who not in may)
        if denied:
            roles = " or ".join(message.roles)
            verb = message.what.split()[0]
            assert answer.reason == f"{verb!r} needs the role {roles}, and {who} is {it.role}"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"who": "mallory"}, "'mallory' is not an operator of this coordinator"),
        ({"key": "eve"}, "'sue' is not an operator of this coordinator, or uses another key than the one listed here"),
        ({"fleet": "other"}, "signed for another coordinator"),
        ({"cloud": "other"}, "signed for another coordinator"),
        ({"at": NOW - SIGNATURE_WINDOW - 1}, "was signed 1,801 s ago"),
        ({"at": NOW + SIGNATURE_WINDOW + 1}, "was signed -1,801 s ago"),
        ({"digest": bytes(32)}, "the signature is for another request"),
        ({"what": "submit harmless"}, "the signature is for another request"),
        ({"ticket": "other"}, "the signature is for another request"),
    ],
)
def test_signature_is_valid_only_for_its_request(how, why) -> None:
    desk = Desk()
    answer = desk.by(how.pop("who", "sue"), Submit("t", text()), **how)
    assert isinstance(answer, Refused)
    assert why in answer.reason
    assert desk.cloud.state.jobs == {}
    assert [outcome for _, _, outcome in desk.log] == ["refused"]


def test_request_from_another_sender_is_refused() -> None:
    desk = Desk()
    (answer,) = sends(desk.receive(Address("cloud", "vera"), request("sue", Inspect("i"))))
    assert "'sue' signed the request, and 'vera' sent it" in answer.reason
    assert (desk.cloud.role_of("sue"), desk.cloud.role_of("unknown")) == ("cloud", "edge")


def test_malformed_inner_message_is_refused() -> None:
    desk = Desk()
    for data in (b"", b"\x80", b"\xc1", msgspec.msgpack.encode({"kind": "visit"}), bytes(70_000)):
        it = request("otto", Stop("t", "job"))
        (answer,) = sends(desk.receive(OPERATOR, msgspec.structs.replace(it, message=data)))
        assert isinstance(answer, Refused)


def test_repeated_request_runs_once_even_after_restart() -> None:
    desk = Desk()
    desk.by("sue", Submit("t", text()))
    stop = request("sue", Stop("s", "job"))
    desk.receive(SUE, stop)
    desk.by("sue", Continue("c", "job", 5))
    state = desk.cloud.state.jobs["job"]
    assert state.status == "compiling"
    before = len(desk.records)
    assert isinstance(sends(desk.receive(SUE, stop, 60.0))[0], Jobs)  # a replay by an attacker
    desk.cloud = desk.replayed()
    desk.note(desk.cloud.start(60.0))
    assert isinstance(sends(desk.receive(SUE, stop, 70.0))[0], Jobs)
    assert desk.cloud.state.jobs["job"].status == "compiling"
    assert len(desk.records) == before
    late = sends(desk.receive(SUE, stop, SIGNATURE_WINDOW + 1))[0]
    assert "ago by this clock" in late.reason


def test_replayed_submission_does_not_restore_removed_job() -> None:
    desk = Desk()
    submit = request("sue", Submit("t", text()))
    desk.receive(SUE, submit)
    desk.by("sue", Stop("s", "job"))
    desk.by("sue", Remove("r", "job"))
    (answer,) = sends(desk.receive(SUE, submit, 9.0))
    assert "there is no job 'job'" in answer.reason
    assert desk.cloud.state.jobs == {}


def test_refused_request_stays_refused_when_repeated() -> None:
    desk = Desk()
    stop = request("sue", Remove("r", "job"))
    (first,) = sends(desk.receive(SUE, stop))
    desk.by("sue", Submit("t", text()))
    desk.by("sue", Stop("s", "job"))
    assert sends(desk.receive(SUE, stop)) == [first]
    assert "job" in desk.cloud.state.jobs


def test_audit_entry_is_written_before_reply_with_signature() -> None:
    desk = Desk()
    effects = desk.cloud.handle(_received(request("sue", Submit("t", text()))), 0.0)
    at = next(n for n, it in enumerate(effects) if isinstance(it, Append) and isinstance(it.record, AuditRecorded))
    answer = next(n for n, it in enumerate(effects) if isinstance(it, Send) and isinstance(it.message, Jobs))
    assert at < answer
    (entry,) = desk.cloud.state.audit.entries
    assert entry.proof
    assert entry.proof.signed_by(key_of("sue").public)
    assert faults([entry], PEOPLE) == []


def test_replaced_key_takes_effect_at_once() -> None:
    desk = Desk()
    desk.people["sue"] = OperatorEntry(key=key_of("sue-2").public, role="submitter")
    assert isinstance(desk.by("sue", Submit("t", text())), Refused)
    assert isinstance(desk.by("sue", Submit("t", text()), key="sue-2"), Jobs)
    del desk.people["sue"]
    assert isinstance(desk.by("sue", Stop("s", "job"), key="sue-2"), Refused)


def test_flood_of_refused_requests_is_counted_not_logged() -> None:
    desk = Desk()
    for number in range(500):
        desk.receive(OPERATOR, Stop(f"t{number}", "job"))
    assert len(desk.cloud.state.audit.entries) == 20
    desk.receive(OPERATOR, Stop("late", "job"), 700.0)
    assert desk.cloud.state.audit.entries[-1].detail.endswith("(before it, 480 more were refused)")
    desk.by("sue", Submit("t", text()))
    assert desk.log[-1] == ("sue", "submit job", "done")


def test_audit_log_is_paged_completely() -> None:
    desk = Desk()
    for number in range(150):
        desk.by("sue", Stop(f"t{number}", "a-job-of-a-long-name"))
    found: list[AuditEntry] = []
    while True:
        page = desk.by("vera", InspectAudit(f"a{len(found)}", found[-1].number if found else 0))
        assert isinstance(page, Audit)
        found += page.entries
        if not page.more:
            break
    assert found == desk.cloud.state.audit.entries
    assert (len(found), faults(found, PEOPLE)) == (150, [])


def test_old_entries_are_dropped_and_hash_chain_stays_valid() -> None:
    log = AuditLog()
    for number in range(KEPT + 5):
        log.apply(AuditRecorded(AuditEntry(number + 1, 0.0, "ann", "stop", "done", "", str(number), None, log.head)))
    assert (len(log.entries), log.entries[0].number, faults(log.entries)) == (KEPT, 6, [])


def _received(message):
    return Received(SUE, BOOT, message)
