"""A new kind of request needs a class with its answer, a handler, and a client method; nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from coordinator.console.operator import Operator, _ticket
from sojourn.errors import JobError, LinkError
from sojourn.node.machine import Send
from sojourn.protocol.envelope import MESSAGES
from sojourn.protocol.operator_messages import Jobs, Submit
from sojourn.protocol.operators import SignedRequest
from sojourn.protocol.registry import SUBMITTERS, Answer, OperatorRequest, by_kind
from sojourn.protocol.topics import Address
from tests.coordinator.console.test_operator import BROKER, FakeLink
from tests.coordinator.machine.cloud_bench import text
from tests.coordinator.machine.test_request_authorizer import Desk
from tests.sojourn.protocol.mandates import NOW, key_of
from tests.sojourn.store.replays import sends

if TYPE_CHECKING:
    from sojourn.protocol.registry import Message

# First and second: the request with its answer, as a module of `sojourn.protocol` would have them.


class Counted(Answer, frozen=True, tag="counted"):
    """The answer to `count-jobs`."""

    jobs: int


class CountJobs(OperatorRequest[Counted], frozen=True, tag="count-jobs"):
    """Request the number of jobs with this status."""

    roles = SUBMITTERS
    status: str

    @property
    def subject(self) -> str:
        return self.status


# Third: the handler, as a line of the coordinator's table.


def count_jobs(desk: Desk) -> None:
    def handler(to: Address, asked: CountJobs, _: float) -> list[Send]:
        found = [it for it in desk.cloud.state.jobs.values() if it.status == asked.status]
        return [Send(to, Counted(asked.ticket, len(found)))]

    desk.cloud._handlers[CountJobs] = handler  # type: ignore[assignment]  # a list of sends is one of effects


# Fourth: the method of the client.


class Person(Operator):
    def count_jobs(self, status: str) -> int:
        return self._client.ask(CountJobs(_ticket(), status), 30.0).jobs


@pytest.fixture(autouse=True)
def _registered(monkeypatch) -> None:
    for kind, form in by_kind(sys.modules[__name__]).items():
        monkeypatch.setitem(MESSAGES, kind, form)


def person(who: str, desk: Desk) -> Person:
    """An operator with a key, connected to this coordinator."""

    me = Address("cloud", who)

    def answers(message: Message) -> list[Message]:
        return sends(desk.receive(me, message))

    link = FakeLink(answers, me=me, cloud=desk.cloud.address, fleet="fleet")
    return Person(BROKER, fleet="fleet", cloud="c", name=who, link=link, signer=key_of(who))


@pytest.fixture(autouse=True)
def _clock(monkeypatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)


def test_new_request_is_signed_answered_and_audited() -> None:
    desk = Desk()
    count_jobs(desk)
    desk.by("otto", Submit("t", text()))
    assert person("sue", desk).count_jobs("compiling") == 1
    assert desk.log[-1] == ("sue", "count-jobs compiling", "done")


def test_new_request_is_refused_to_other_roles() -> None:
    desk = Desk()
    count_jobs(desk)
    with pytest.raises(JobError, match="'count-jobs' needs the role submitter or owner, and vera is viewer"):
        person("vera", desk).count_jobs("compiling")
    assert set(desk.log) == {("vera", "count-jobs compiling", "refused")}


def test_request_without_a_class_in_the_registry_is_of_an_unknown_kind(monkeypatch) -> None:
    monkeypatch.delitem(MESSAGES, "count-jobs")
    with pytest.raises(JobError, match="the request cannot be read: unknown kind 'count-jobs'"):
        person("sue", Desk()).count_jobs("compiling")


def test_answer_of_another_type_is_an_error() -> None:
    link = FakeLink(lambda asked: [Jobs(asked.ticket, (), "1")])
    client = Person(BROKER, fleet="home", cloud="cloud", link=link)
    with pytest.raises(LinkError, match="coordinator 'cloud' answered with Jobs"):
        client.count_jobs("done")


def test_coordinator_has_a_handler_for_every_request() -> None:
    requests = {form for form in MESSAGES.values() if issubclass(form, OperatorRequest)}
    assert set(Desk().cloud._handlers) == requests - {SignedRequest, CountJobs}
