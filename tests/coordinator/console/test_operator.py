"""Asking a coordinator: again until it answers, and only for one's own answers."""

from __future__ import annotations

import threading
from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.console import coordinator_client, following
from coordinator.console.asking import CONNECTION, repeated
from coordinator.console.following import progress_of
from coordinator.console.operator import Operator
from sojourn.errors import JobError, LinkError
from sojourn.links.settings import BrokerSettings
from sojourn.node.exchange import Exchange
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.messages import Export, Exported, Fetch, FetchHashes, Inspect, Jobs, Refused, Submit
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, JobView, RoundReport
from sojourn.store.blobs import LEAF, ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.waiting import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.links.link import Listener
    from sojourn.protocol.messages import Message

CLOUD, ME = Address("cloud", "cloud"), Address("cloud", "operator")
VIEW = JobView("first", "visit", "mlp", "running", "", 0, 10, "train", nan, 4)
BROKER = BrokerSettings(host="here")


class FakeLink:
    """A link to a coordinator that answers as the test says, whatever kind of question the test expects."""

    payload_limit = 100_000

    def __init__(self, answer: Callable[[Any], list[Message]], down: str | None = None) -> None:
        self._answer, self._down = answer, down
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
        assert topic == topics.inbox("home", CLOUD, "operator")
        message = unpack(payload, ME, CLOUD).message
        self.asked.append(message)
        for answer in self._answer(message):
            self.tell(answer)

    def tell(self, message: Message) -> None:
        packet = Packet(1, Epoch(1, bytes(8)), message)
        self.listener.arrived(self, topics.inbox("home", ME, "cloud"), pack(packet))

    def close(self) -> None: ...


def operator(link: FakeLink) -> Operator:
    return Operator(BROKER, fleet="home", cloud="cloud", link=link)


def test_an_answer_with_another_ticket_is_somebody_elses() -> None:
    theirs = msgspec.structs.replace(VIEW, job="theirs")
    link = FakeLink(lambda question: [Jobs("other", (theirs,)), Jobs(question.ticket, (VIEW,))])
    assert operator(link).job("first").job == "first"


def test_every_question_has_a_ticket_of_its_own() -> None:
    link = FakeLink(lambda question: [Jobs(question.ticket, (VIEW,))])
    client = operator(link)
    client.jobs()
    client.submit('name = "first"')
    asked = list(dict.fromkeys(link.asked))
    assert [type(question) for question in asked] == [Inspect, Submit]
    assert asked[0].ticket != asked[1].ticket


def test_it_asks_again_with_the_same_ticket_until_it_is_answered() -> None:
    answers = iter([[], [VIEW]])
    link = FakeLink(lambda question: [Jobs(question.ticket, (view,)) for view in next(answers)])
    assert operator(link).submit("x").job == "first"
    assert len(link.asked) == 2
    assert link.asked[0] == link.asked[1]


def test_a_refusal_is_the_persons_to_mend() -> None:
    link = FakeLink(lambda question: [Refused(question.ticket, "there is no job 'x'")])
    with pytest.raises(JobError, match="there is no job 'x'"):
        operator(link).stop("x")


def test_silence_is_an_error_that_says_where_to_look() -> None:
    silent = operator(FakeLink(lambda _: []))
    with pytest.raises(LinkError, match=r"no answer from coordinator 'cloud' at here:1883 in 0.2 s: is it running"):
        silent.jobs(patience=0.2)


def test_a_broker_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(LinkError, match="no broker listens"):
        operator(FakeLink(lambda _: [], down="no broker listens at here:1883")).jobs(patience=60)


@pytest.mark.parametrize("size", [100, 5 * LEAF + 17])
def test_an_export_is_fetched_whole(size: int, monkeypatch) -> None:
    monkeypatch.setattr(coordinator_client, "PATIENCE", LIMIT)
    model = bytes(at * 31 % 251 for at in range(size))
    blobs, ref = MemoryBlobs(), ref_of(model)
    blobs.put(model, ref.digest)
    holder = Exchange(blobs, lambda _, message: link.tell(message), lambda _: 100_000)
    holder.grant(ME, [ref.digest])

    def answer(message: Any) -> list[Message]:
        match message:
            case Export():
                inline = model if size < 1000 else None
                return [Exported(message.ticket, msgspec.structs.replace(ref, inline=inline), 0.9)]
            case Fetch() | FetchHashes():
                threading.Thread(target=holder.handle, args=(ME, message, 0.0)).start()
                return []
            case _:
                return [Jobs(message.ticket, (VIEW,))]

    link = FakeLink(answer)
    assert operator(link).export("first") == (model, 0.9, None)


def test_history_comes_in_pages() -> None:
    reports = tuple(RoundReport(n, 0.5, 1.0, 1, 1, 0, 0, 0.1, {}) for n in range(1, 251))

    def answer(question: Message) -> list[Message]:
        assert isinstance(question, Inspect)
        page = reports[question.since : question.since + 100]
        return [Jobs(question.ticket, (msgspec.structs.replace(VIEW, round=250, history=page),))]

    link = FakeLink(answer)
    first = progress_of(operator(link), "first")
    assert first.history == reports
    assert list(dict.fromkeys(question.since for question in link.asked)) == [0, 100, 200]
    assert progress_of(operator(link), "first", first).history == reports
    assert link.asked[-1].since == 250


def test_an_older_coordinator_is_not_asked_for_what_it_does_not_know() -> None:
    link = FakeLink(lambda question: [Jobs(question.ticket, (VIEW,))])
    client = operator(link)
    for ask in (
        lambda: client.go_on("first", 3),
        lambda: client.remove("first"),
        lambda: client.job_file("first"),
        lambda: client.export("first", 2),
        lambda: client.export("first", "best"),
    ):
        with pytest.raises(JobError, match=r"is of a version before 0.4.0 and cannot .*: update it"):
            ask()
    assert {type(question) for question in link.asked} == {Inspect}


def test_a_watcher_asks_on_when_nobody_answers(monkeypatch) -> None:
    monkeypatch.setattr(following, "PAUSE", 0.0)
    monkeypatch.setattr(following, "SILENCE", 0.01)
    done = msgspec.structs.replace(VIEW, status="done")
    looks: list[following.JobProgress] = []
    answers = {0: (VIEW,), 1: (), 2: (), 3: (done,)}
    link = FakeLink(lambda question: [Jobs(question.ticket, (view,)) for view in answers[len(looks)]])
    for look in following.follow(operator(link), "first"):
        looks.append(look)  # noqa: PERF402  # what is answered depends on how many there are
    assert [look.silent_since is None for look in looks] == [True, False, False, True]
    assert looks[1].silent_since == looks[2].silent_since
    assert [look.view.status for look in looks] == ["running", "running", "running", "done"]


def test_the_next_command_repeats_the_options_that_were_given(monkeypatch) -> None:
    monkeypatch.setenv("SOJOURN_FLEET", "home")
    monkeypatch.delenv("SOJOURN_BROKER", raising=False)
    given = {each.name: each.default for each in CONNECTION} | {"fleet": "home"}
    assert repeated(given) == ""
    given |= {"broker": "there:8883", "ca_file": "my ca.pem", "fleet": "sojourn"}
    assert repeated(given) == " --broker there:8883 --fleet sojourn --ca-file 'my ca.pem'"
    client = operator(FakeLink(lambda _: []))
    client.flags = repeated(given)
    assert client.command("job watch first").startswith("sojourn job watch first --broker there:8883")
