"""Requests to a coordinator are repeated until it answers, and other operators' answers are ignored."""

from __future__ import annotations

import threading
from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.console import coordinator_client, job_progress
from coordinator.console.job_progress import progress_of
from coordinator.console.operator import Operator
from coordinator.console.options import CONNECTION, connection_flags
from sojourn.errors import JobError, LinkError
from sojourn.links.settings import BrokerSettings
from sojourn.node.exchange import Exchange
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.messages import Fetch, FetchHashes
from sojourn.protocol.operator_messages import Export, Exported, Inspect, Jobs, Refused, Submit
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, JobView, RoundReport
from sojourn.store.blobs import LEAF, ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.links.link import Listener
    from sojourn.protocol.registry import Message

CLOUD, ME = Address("cloud", "cloud"), Address("cloud", "operator")
VIEW = JobView("first", "visit", "mlp", "running", "", 0, 10, "train", nan, 4)
BROKER = BrokerSettings(host="here")


class FakeLink:
    """A link to a coordinator that answers any request as the test defines."""

    payload_limit = 100_000

    def __init__(
        self, answer: Callable[[Any], list[Message]], down: str | None = None, *, me=ME, cloud=CLOUD, fleet="home"
    ) -> None:
        self._answer, self._down, self._fleet = answer, down, fleet
        self._me, self._cloud = me, cloud
        self.asked: list[Any] = []
        self.listener: Listener

    def open(self, listener: Listener, filters: object, will: object) -> None:
        self.listener = listener
        if self._down:
            listener.link_down(self, self._down)
        else:
            listener.link_up(self)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if self._down:
            return
        assert topic == topics.inbox(self._fleet, self._cloud, self._me.name)
        message = unpack(payload, self._me, self._cloud).message
        self.asked.append(message)
        for answer in self._answer(message):
            self.deliver(answer)

    def deliver(self, message: Message) -> None:
        packet = Packet(1, Epoch(1, bytes(8)), message)
        self.listener.arrived(self, topics.inbox(self._fleet, self._me, self._cloud.name), pack(packet))

    def close(self) -> None: ...


def operator(link: FakeLink) -> Operator:
    return Operator(BROKER, fleet="home", cloud="cloud", link=link)


def test_reply_with_another_ticket_is_ignored() -> None:
    theirs = msgspec.structs.replace(VIEW, job="theirs")
    link = FakeLink(lambda request: [Jobs("other", (theirs,), "1.0.0"), Jobs(request.ticket, (VIEW,), "1.0.0")])
    assert operator(link).job("first").job == "first"


def test_every_request_has_its_own_ticket() -> None:
    link = FakeLink(lambda request: [Jobs(request.ticket, (VIEW,), "1.0.0")])
    client = operator(link)
    client.jobs()
    client.submit('name = "first"')
    asked = list(dict.fromkeys(link.asked))
    assert [type(request) for request in asked] == [Inspect, Submit]
    assert asked[0].ticket != asked[1].ticket


def test_request_is_resent_with_same_ticket_until_answered() -> None:
    answers = iter([[], [VIEW]])
    link = FakeLink(lambda request: [Jobs(request.ticket, (view,), "1.0.0") for view in next(answers)])
    assert operator(link).submit("x").job == "first"
    assert len(link.asked) == 2
    assert link.asked[0] == link.asked[1]


def test_refusal_is_raised_to_the_user() -> None:
    link = FakeLink(lambda request: [Refused(request.ticket, "there is no job 'x'")])
    with pytest.raises(JobError, match="there is no job 'x'"):
        operator(link).stop("x")


def test_missing_reply_reports_where_to_look() -> None:
    silent = operator(FakeLink(lambda _: []))
    with pytest.raises(LinkError, match=r"no answer from coordinator 'cloud' at here:1883 in 0.2 s: is it running"):
        silent.jobs(timeout=0.2)


def test_unreachable_broker_fails_at_once() -> None:
    with pytest.raises(LinkError, match="no broker listens"):
        operator(FakeLink(lambda _: [], down="no broker listens at here:1883")).jobs(timeout=60)


@pytest.mark.parametrize("size", [100, 5 * LEAF + 17])
def test_export_is_downloaded_completely(size: int, monkeypatch) -> None:
    monkeypatch.setattr(coordinator_client, "ANSWER_TIMEOUT", LIMIT)
    model = bytes(at * 31 % 251 for at in range(size))
    blobs, ref = MemoryBlobs(), ref_of(model)
    blobs.put(model, ref.digest)
    holder = Exchange(blobs, lambda _, message: link.deliver(message), lambda _: 100_000)
    holder.grant(ME, [ref.digest])

    def answer(message: Any) -> list[Message]:
        match message:
            case Export():
                inline = model if size < 1000 else None
                return [Exported(message.ticket, msgspec.structs.replace(ref, inline=inline), 0.9, 7)]
            case Fetch() | FetchHashes():
                threading.Thread(target=holder.handle, args=(ME, message, 0.0)).start()
                return []
            case _:
                return [Jobs(message.ticket, (VIEW,), "1.0.0")]

    link = FakeLink(answer)
    assert operator(link).export("first") == (model, 0.9, 7)


def test_history_is_fetched_in_pages() -> None:
    reports = tuple(RoundReport(n, 0.5, 1.0, 1, 1, 0, 0, 0.1, {}) for n in range(1, 251))

    def answer(request: Message) -> list[Message]:
        assert isinstance(request, Inspect)
        page = reports[request.since : request.since + 100]
        return [Jobs(request.ticket, (msgspec.structs.replace(VIEW, round=250, history=page),), "1.0.0")]

    link = FakeLink(answer)
    first = progress_of(operator(link), "first")
    assert first.history == reports
    assert list(dict.fromkeys(request.since for request in link.asked)) == [0, 100, 200]
    assert progress_of(operator(link), "first", first).history == reports
    assert link.asked[-1].since == 250


def test_watch_retries_while_coordinator_is_silent(monkeypatch) -> None:
    monkeypatch.setattr(job_progress, "POLL_INTERVAL", 0.0)
    monkeypatch.setattr(job_progress, "SILENCE_NOTICE", 0.01)
    done = msgspec.structs.replace(VIEW, status="done")
    looks: list[job_progress.JobProgress] = []
    answers = {0: (VIEW,), 1: (), 2: (), 3: (done,)}
    link = FakeLink(lambda request: [Jobs(request.ticket, (view,), "1.0.0") for view in answers[len(looks)]])
    for look in job_progress.follow(operator(link), "first"):
        looks.append(look)  # noqa: PERF402  # what is answered depends on how many there are
    assert [look.silent_since is None for look in looks] == [True, False, False, True]
    assert looks[1].silent_since == looks[2].silent_since
    assert [look.view.status for look in looks] == ["running", "running", "running", "done"]


def test_next_command_repeats_given_options(monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_FLEET", "home")
    monkeypatch.delenv("SOJOURN_BROKER", raising=False)
    given = {each.name: each.default for each in CONNECTION} | {"fleet": "home"}
    assert connection_flags(given) == ""
    given |= {"broker": "there:8883", "ca_file": "my ca.pem", "fleet": "sojourn"}
    assert connection_flags(given) == " --broker there:8883 --fleet sojourn --ca-file 'my ca.pem'"
    client = operator(FakeLink(lambda _: []))
    client.flags = connection_flags(given)
    assert client.command("job watch first").startswith("sojourn job watch first --broker there:8883")
