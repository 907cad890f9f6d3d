"""Operators with keys: each request is signed, of a role that may make it, made a moment ago, and done once."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from coordinator.audit_records import KEPT, ActLogged, AuditLog
from coordinator.machine.acts import ACTS, NEEDED, what_of
from coordinator.machine.coordinator import Coordinator
from coordinator.machine.operator_desk import NO_KEY, WINDOW
from coordinator.machine.trust import Trust
from sojourn.node.machine import Append, Received, Send
from sojourn.protocol.audit import Audit, AuditEntry, InspectAudit, faults
from sojourn.protocol.job_messages import Continue, Remove
from sojourn.protocol.messages import Export, Inspect, Jobs, Refused, Stop, Submit
from sojourn.protocol.operators import OperatorEntry, Request, SignedRequest, sign_request
from sojourn.protocol.release_messages import InspectReleases, Steer
from sojourn.protocol.topics import Address
from tests.coordinator.machine.cloud_bench import BOOT, OPERATOR, Bench, text
from tests.sojourn.protocol.mandates import NOW, key_of
from tests.sojourn.store.replays import replayed, sends

ROLES = {"vera": "viewer", "sue": "submitter", "rob": "releaser", "otto": "owner"}
PEOPLE = {name: OperatorEntry(key=key_of(name).public, role=role) for name, role in ROLES.items()}  # type: ignore[arg-type]


SUE = Address("cloud", "sue")


class Desk(Bench):
    """A coordinator with operators who have keys."""

    def __init__(self) -> None:
        super().__init__()
        self.people = dict(PEOPLE)
        self.cloud = self._new()

    def _new(self) -> Coordinator:
        return Coordinator("c", fleet="fleet", trust=Trust(roles=lambda: self.people), wall=NOW)

    def replayed(self, cut=0) -> Coordinator:
        return replayed(self._new(), self.records, cut)

    def by(self, who: str, message: Any, now=0.0, **how) -> Any:
        """What is answered to a signed request."""
        (answer,) = sends(self.hear(Address("cloud", who), request(who, message, **how), now))
        return answer

    @property
    def log(self) -> list[tuple[str, str, str]]:
        return [(it.who, it.what, it.outcome) for it in self.cloud.state.audit.entries]


def request(who: str, message: Any, key: str | None = None, **changes: Any) -> SignedRequest:
    data = msgspec.msgpack.encode(message)
    plain: dict[str, Any] = {
        "fleet": "fleet", "cloud": "c", "operator": who, "at": NOW, "ticket": message.ticket,
        "what": what_of(message), "digest": hashlib.sha256(data).digest(),
    }  # fmt: skip
    return SignedRequest(message.ticket, data, sign_request(Request(**(plain | changes)), key_of(key or who)))


def test_without_a_file_all_is_as_it_was_and_written_down() -> None:
    bench = Bench()
    assert isinstance(sends(bench.hear(OPERATOR, Submit("t", text())))[0], Jobs)
    (entry,) = bench.cloud.state.audit.entries
    assert (entry.who, entry.what, entry.outcome, entry.proof) == ("operator", "submit job", "done", None)


def test_with_a_file_what_is_not_signed_is_refused_and_written_down() -> None:
    desk = Desk()
    for message in (Submit("t", text()), Inspect("i"), InspectAudit("a")):
        assert sends(desk.hear(OPERATOR, message)) == [Refused(message.ticket, NO_KEY)]
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
def test_each_role_may_what_it_may_and_a_refusal_names_the_role_that_is_needed(message, may) -> None:
    for who, it in PEOPLE.items():
        answer = Desk().by(who, message)
        denied = isinstance(answer, Refused) and "needs the role" in answer.reason
        assert denied == (who not in may)
        if denied:
            roles = " or ".join(NEEDED[type(message)])
            verb = what_of(message).split()[0]
            assert answer.reason == f"{verb!r} needs the role {roles}, and {who} is {it.role}"


def test_every_request_of_operators_has_its_roles_and_only_looking_is_no_act() -> None:
    assert {form.__name__ for form in set(NEEDED) - ACTS} == {
        "Inspect", "InspectFleet", "InspectReleases", "InspectAudit", "ReadJob", "ReadKit",
        "AwaitChange", "ReadCard",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"who": "mallory"}, "'mallory' is not an operator of this coordinator"),
        ({"key": "eve"}, "'sue' is not an operator of this coordinator, or has another key here"),
        ({"fleet": "other"}, "signed for another coordinator"),
        ({"cloud": "other"}, "signed for another coordinator"),
        ({"at": NOW - WINDOW - 1}, "was signed 1,801 s ago"),
        ({"at": NOW + WINDOW + 1}, "was signed -1,801 s ago"),
        ({"digest": bytes(32)}, "is not what was signed"),
        ({"what": "submit harmless"}, "is not what was signed"),
        ({"ticket": "other"}, "is not what was signed"),
    ],
)
def test_no_signature_serves_for_anything_else(how, why) -> None:
    desk = Desk()
    answer = desk.by(how.pop("who", "sue"), Submit("t", text()), **how)
    assert isinstance(answer, Refused)
    assert why in answer.reason
    assert desk.cloud.state.jobs == {}
    assert [outcome for _, _, outcome in desk.log] == ["refused"]


def test_a_request_that_somebody_else_sends_is_not_answered_there() -> None:
    desk = Desk()
    (answer,) = sends(desk.hear(Address("cloud", "vera"), request("sue", Inspect("i"))))
    assert "'sue' signed the request, and 'vera' sent it" in answer.reason
    assert (desk.cloud.role_of("sue"), desk.cloud.role_of("nobody")) == ("cloud", "edge")


def test_what_is_inside_is_read_as_carefully_as_what_is_outside() -> None:
    desk = Desk()
    for data in (b"", b"\x80", b"\xc1", msgspec.msgpack.encode({"kind": "visit"}), bytes(70_000)):
        it = request("otto", Stop("t", "job"))
        (answer,) = sends(desk.hear(OPERATOR, msgspec.structs.replace(it, message=data)))
        assert isinstance(answer, Refused)


def test_an_act_is_done_once_however_often_its_message_comes_also_after_a_restart() -> None:
    desk = Desk()
    desk.by("sue", Submit("t", text()))
    stop = request("sue", Stop("s", "job"))
    desk.hear(SUE, stop)
    desk.by("sue", Continue("c", "job", 5))
    state = desk.cloud.state.jobs["job"]
    assert state.status == "compiling"
    before = len(desk.records)
    assert isinstance(sends(desk.hear(SUE, stop, 60.0))[0], Jobs)  # a thief plays it again
    desk.cloud = desk.replayed()
    desk.note(desk.cloud.start(60.0))
    assert isinstance(sends(desk.hear(SUE, stop, 70.0))[0], Jobs)
    assert desk.cloud.state.jobs["job"].status == "compiling"
    assert len(desk.records) == before
    late = sends(desk.hear(SUE, stop, WINDOW + 1))[0]
    assert "ago by the clock here" in late.reason


def test_a_job_that_was_removed_does_not_come_back_with_its_old_message() -> None:
    desk = Desk()
    submit = request("sue", Submit("t", text()))
    desk.hear(SUE, submit)
    desk.by("sue", Stop("s", "job"))
    desk.by("sue", Remove("r", "job"))
    (answer,) = sends(desk.hear(SUE, submit, 9.0))
    assert "there is no job 'job'" in answer.reason
    assert desk.cloud.state.jobs == {}


def test_what_was_refused_stays_refused_though_it_would_do_now() -> None:
    desk = Desk()
    stop = request("sue", Remove("r", "job"))
    (first,) = sends(desk.hear(SUE, stop))
    desk.by("sue", Submit("t", text()))
    desk.by("sue", Stop("s", "job"))
    assert sends(desk.hear(SUE, stop)) == [first]
    assert "job" in desk.cloud.state.jobs


def test_the_entry_is_written_before_the_answer_leaves_and_carries_the_signature() -> None:
    desk = Desk()
    effects = desk.cloud.handle(_received(request("sue", Submit("t", text()))), 0.0)
    at = next(n for n, it in enumerate(effects) if isinstance(it, Append) and isinstance(it.record, ActLogged))
    answer = next(n for n, it in enumerate(effects) if isinstance(it, Send) and isinstance(it.message, Jobs))
    assert at < answer
    (entry,) = desk.cloud.state.audit.entries
    assert entry.proof
    assert entry.proof.signed_by(key_of("sue").public)
    assert faults([entry], PEOPLE) == []


def test_a_key_that_is_replaced_counts_at_once() -> None:
    desk = Desk()
    desk.people["sue"] = OperatorEntry(key=key_of("sue-2").public, role="submitter")
    assert isinstance(desk.by("sue", Submit("t", text())), Refused)
    assert isinstance(desk.by("sue", Submit("t", text()), key="sue-2"), Jobs)
    del desk.people["sue"]
    assert isinstance(desk.by("sue", Stop("s", "job"), key="sue-2"), Refused)


def test_a_flood_of_refused_requests_does_not_fill_the_log_and_is_counted() -> None:
    desk = Desk()
    for number in range(500):
        desk.hear(OPERATOR, Stop(f"t{number}", "job"))
    assert len(desk.cloud.state.audit.entries) == 20
    desk.hear(OPERATOR, Stop("late", "job"), 700.0)
    assert desk.cloud.state.audit.entries[-1].detail.endswith("(before it, 480 more were refused)")
    desk.by("sue", Submit("t", text()))
    assert desk.log[-1] == ("sue", "submit job", "done")


def test_the_log_is_told_page_by_page_and_is_whole() -> None:
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


def test_the_oldest_entries_go_and_the_chain_goes_on() -> None:
    log = AuditLog()
    for number in range(KEPT + 5):
        log.apply(ActLogged(AuditEntry(number + 1, 0.0, "ann", "stop", "done", "", str(number), None, log.head)))
    assert (len(log.entries), log.entries[0].number, faults(log.entries)) == (KEPT, 6, [])


def _received(message):
    return Received(SUE, BOOT, message)
