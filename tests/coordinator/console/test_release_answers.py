"""Releases between operators and the coordinator: made once, sent again on repeats, fetched, and served."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coordinator.console import coordinator_client
from coordinator.console import operator as operators
from coordinator.machine.work import BuildRelease, ExportModel, ModelExported, ReleaseBuilt
from coordinator.releases.making import Wanted
from sojourn.errors import JobError, LinkError
from sojourn.node.exchange import Exchange
from sojourn.node.machine import WorkFailed
from sojourn.protocol.messages import Chunk, Fetch, FetchHashes, Gone, Hashes
from sojourn.protocol.operator_messages import Export, Jobs, Refused, Submit
from sojourn.protocol.release import HealthRules, LineView, RolloutPlan, SignedOrder
from sojourn.protocol.release_messages import InspectReleases, MakeRelease, ReleaseMade, Releases, Rollout, Steer
from sojourn.store.blobs import LEAF, ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.coordinator.console.test_operator import ME, VIEW, FakeLink, operator
from tests.coordinator.machine.cloud_bench import MODEL, OPERATOR, Bench, text
from tests.coordinator.releases.test_file import release
from tests.sojourn.store.replays import sends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sojourn.protocol.registry import Message

GRAPH, CARD = ref_of(b"graph"), ref_of(b"card")
ASKED = MakeRelease("m", "job", "digits", 2, "int8")
ORDER = SignedOrder(b"order", bytes(64))
LINE = LineView("wine", "running", "", 1, 7, 0, 7, None, (1.0,), 1, {}, RolloutPlan(HealthRules(), undo=True))


def test_release_is_built_once_for_repeated_requests() -> None:
    bench = Bench()
    bench.running()
    bench.trained()
    assert bench.receive(OPERATOR, ASKED)
    (work,) = [work for work in bench.work.values() if isinstance(work, BuildRelease)]
    assert (work.ticket, work.operator, work.asked, work.state.name) == ("m", "operator", ASKED, "job")
    assert bench.receive(OPERATOR, ASKED) == []
    made = ReleaseMade("m", GRAPH, CARD)
    assert sends(bench.did(BuildRelease, ReleaseBuilt("m", "operator", GRAPH, CARD))) == [made]
    assert sends(bench.receive(OPERATOR, ASKED)) == [made]
    assert bench.cloud.live() >= {GRAPH.digest, CARD.digest}


def test_release_work_has_its_own_state_copy() -> None:
    bench = Bench()
    bench.running()
    bench.trained()
    bench.receive(OPERATOR, ASKED)
    (work,) = [work for work in bench.work.values() if isinstance(work, BuildRelease)]
    assert work.state is not bench.cloud.state.jobs["job"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(work), type=BuildRelease) == work


def test_impossible_release_is_refused_and_job_continues() -> None:
    bench = Bench()
    assert sends(bench.receive(OPERATOR, ASKED)) == [Refused("m", "there is no job 'job'; the jobs are: none")]
    bench.receive(OPERATOR, Submit("t", text()))
    assert "it has no model yet" in sends(bench.receive(OPERATOR, ASKED))[0].reason
    bench.join("s1", ("a",))
    bench.join("s2", ("b",))
    bench.compile()
    bench.plan()
    assert "no device has trained the model of job 'job'" in sends(bench.receive(OPERATOR, ASKED))[0].reason
    bench.trained()
    bench.receive(OPERATOR, ASKED)
    key = next(key for key, work in bench.work.items() if isinstance(work, BuildRelease))
    assert sends(bench.handle(WorkFailed(key, "failed", "they disagree"))) == [Refused("m", "they disagree")]
    assert bench.cloud.state.jobs["job"].status == "running"
    assert bench.receive(OPERATOR, ASKED)  # a repeated request is retried


def test_built_release_stays_while_next_is_built() -> None:
    bench = Bench()
    bench.running()
    bench.trained()
    bench.receive(OPERATOR, ASKED)
    bench.did(BuildRelease, ReleaseBuilt("m", "operator", GRAPH, CARD))
    for number in range(4):
        assert GRAPH.digest in bench.cloud.live()
        bench.receive(OPERATOR, Export(f"e{number}", "job"))
        bench.did(ExportModel, ModelExported(f"e{number}", "operator", MODEL, 0.5, 0))
    assert GRAPH.digest not in bench.cloud.live()


def test_operator_fetches_and_verifies_graph_and_card() -> None:
    made = release()
    refs = [ref_of(made.graph), ref_of(made.card_bytes)]
    contents = (made.graph, made.card_bytes)
    inline = [msgspec.structs.replace(ref, inline=data) for ref, data in zip(refs, contents, strict=True)]
    asked: list[MakeRelease] = []

    def answer(question: Any) -> list[Message]:
        if not isinstance(question, MakeRelease):
            return [Jobs(question.ticket, (VIEW,), "1.0.0")]
        asked.append(question)
        return [ReleaseMade(question.ticket, *inline)]

    wanted = Wanted("wine", 7, "int8", "notes", 0.02)
    got = operator(FakeLink(answer)).make_release("first", wanted)
    assert (got.graph, got.card_bytes) == (made.graph, made.card_bytes)
    fields = (asked[0].job, asked[0].line, asked[0].version, asked[0].encoding, asked[0].notes, asked[0].max_loss)
    assert fields == ("first", "wine", 7, "int8", "notes", 0.02)


def test_lines_are_listed_and_steered() -> None:
    link = FakeLink(lambda question: [Releases(question.ticket, (LINE,))])
    client = operator(link)
    assert client.releases() == client.releases("wine") == (LINE,)
    assert client.steer("wine", "pause") == LINE
    asked = list(dict.fromkeys(link.asked))
    assert [(type(each), each.line) for each in asked] == [
        (InspectReleases, None),
        (InspectReleases, "wine"),
        (Steer, "wine"),
    ]
    assert asked[2].action == "pause"
    refusing = operator(FakeLink(lambda question: [Refused(question.ticket, "no such line")]))
    with pytest.raises(JobError, match="no such line"):
        refusing.steer("wine", "pause")
    wrong = operator(FakeLink(lambda question: [Jobs(question.ticket, (), "1.0.0")]))
    with pytest.raises(LinkError, match="answered with Jobs"):
        wrong.releases()
    empty = operator(FakeLink(lambda question: [Releases(question.ticket, ())]))
    assert empty.releases("wine") == ()
    with pytest.raises(LinkError, match="without a model line"):
        empty.steer("wine", "resume")


class Taking:
    """A coordinator that fetches both blobs of a rollout before it answers; `pause` runs before each question."""

    def __init__(self, pause: Callable[[], object] = lambda: None) -> None:
        self.blobs, self.pause, self.begun, self.gone = MemoryBlobs(), pause, False, 0
        self.exchange = Exchange(self.blobs, self.ask, lambda _: 100_000)
        self.link = FakeLink(self.answer)
        self.wanted: Rollout

    def ask(self, _to: object, message: Message) -> None:
        self.pause()
        threading.Thread(target=self.link.deliver, args=(message,)).start()

    def answer(self, message: Message) -> list[Message]:
        match message:
            case Rollout() if not self.begun:
                self.begun, self.wanted = True, message
                self.exchange.pull(message.graph, ME, 0.0)
                self.exchange.pull(message.card, ME, 0.0)
                return [Fetch(bytes(32), 0, 1)]  # another operator of this name has it
            case Hashes() | Chunk():
                self.exchange.handle(ME, message, 0.0)
            case Gone():
                self.gone += 1
        here = self.begun and self.blobs.has(self.wanted.graph.digest) and self.blobs.has(self.wanted.card.digest)
        return [Releases(self.wanted.ticket, (LINE,))] if here else []


@pytest.mark.parametrize("size", [100, 40 * LEAF + 17])
def test_rollout_files_are_served_until_coordinator_has_them(size: int) -> None:
    made = release()
    made = type(made)(made.card, bytes(at * 31 % 251 for at in range(size)), made.card_bytes)
    cloud = Taking()
    rules = HealthRules(soak=3.0)
    view = operator(cloud.link).rollout(ORDER, ORDER, made, [0.5, 1.0], rules, undo=False)
    assert view == LINE
    assert cloud.blobs.read(ref_of(made.graph).digest) == made.graph
    assert cloud.blobs.read(ref_of(made.card_bytes).digest) == made.card_bytes
    assert (cloud.wanted.stages, cloud.wanted.rules, cloud.wanted.undo) == ((0.5, 1.0), rules, False)
    assert cloud.gone == 0


def test_rollout_timeout_is_extended_while_files_are_fetched(monkeypatch) -> None:
    made = release()
    made = type(made)(made.card, bytes(150 * LEAF), made.card_bytes)
    passed: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(operators, "ROLLOUT_TIMEOUT", 1.0)
        # Time passes with each question alone, however long this machine takes to answer it.
        patch.setattr(coordinator_client, "time", SimpleNamespace(monotonic=lambda: sum(passed)))
        cloud = Taking(lambda: passed.append(0.25))
        assert operator(cloud.link).rollout(ORDER, ORDER, made, [1.0], HealthRules()) == LINE
    assert sum(passed) > 1.5  # longer than timeout alone would last
    monkeypatch.setattr(operators, "ROLLOUT_TIMEOUT", 0.2)
    with pytest.raises(LinkError, match=r"no answer from coordinator 'cloud' at here:1883 in 0.2 s"):
        operator(FakeLink(lambda _: [])).rollout(ORDER, ORDER, made, [1.0], HealthRules())


def test_fetch_is_ignored_without_a_rollout() -> None:
    answers: Iterator[list[Message]] = iter([[Fetch(bytes(32), 0, 1), FetchHashes(bytes(32), 0)], []])
    link = FakeLink(lambda question: [*next(answers, []), Releases(question.ticket, (LINE,))])
    assert operator(link).releases() == (LINE,)
    assert not any(isinstance(message, Gone) for message in link.asked)
