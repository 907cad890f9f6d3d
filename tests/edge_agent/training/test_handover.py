"""The vectors of a visit and the memory of a device: encodings, counts, and lost memories."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.agent import Agent
from edge_agent.records import Memory
from edge_agent.training.visit_vectors import Unsupported
from sojourn.node.machine import Append, Pull, Pulled, Received, StartWork, WorkDone
from sojourn.parts import Dyn, Prox, Sam, Scaffold, Sgd
from sojourn.protocol.messages import Accepted, Discarded
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch, Offer, Ref
from tests.edge_agent.training.kits import Bench, compiled, visit_for, with_vectors

if TYPE_CHECKING:
    from pathlib import Path

    from edge_agent.training.messages import Train, Trained

LR, STEPS = 0.1, 7


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def remembering(bench: Bench, objective: Any, last: Trained | None, **task: Any) -> Train:
    """The next visit of a device, with the output of the last one."""
    work = visit_for(bench.blobs, objective=objective, **task)
    if last is None:
        return work
    seen = int(last.metrics["remembered"]) + 1
    return msgspec.structs.replace(work, memory=last.memory, remembered=seen)


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(compiled().kit.model.size).astype(np.float32) / 10


def test_dyn_keeps_memory_across_visits(bench: Bench) -> None:
    first = bench.perform(remembering(bench, Dyn(a=0.4), None))
    assert first.metrics["remembered"] == 0
    assert first.vectors == bench.train(objective=Prox(mu=0.4)).vectors  # round 1 is FedProx
    h = -0.4 * (bench.load(first.vectors["model"]) - compiled().initial)
    np.testing.assert_allclose(bench.load(first.memory["h"]), h, atol=1e-6)

    second = bench.perform(remembering(bench, Dyn(a=0.4), first))
    assert second.metrics["remembered"] == 1
    assert second.vectors != first.vectors
    h = bench.load(first.memory["h"]) - 0.4 * (bench.load(second.vectors["model"]) - compiled().initial)
    np.testing.assert_allclose(bench.load(second.memory["h"]), h, atol=1e-6)
    third = bench.perform(remembering(bench, Dyn(a=0.4), second))
    assert third.metrics["remembered"] == 2


def test_scaffold_takes_fleet_control_and_sends_its_own_delta(bench: Bench) -> None:
    control, zero = noise(1), np.zeros(compiled().kit.model.size, np.float32)
    plain = bench.perform(with_vectors(visit_for(bench.blobs, objective=Scaffold()), bench.blobs, control=zero))
    assert plain.vectors["model"] == bench.train().vectors["model"]
    first = bench.perform(with_vectors(visit_for(bench.blobs, objective=Scaffold()), bench.blobs, control=control))
    mine = -control + (compiled().initial - bench.load(first.vectors["model"])) / (STEPS * LR)
    np.testing.assert_allclose(bench.load(first.memory["control"]), mine, atol=1e-5)
    np.testing.assert_allclose(bench.load(first.vectors["control_delta"]), mine, atol=1e-5)
    work = with_vectors(remembering(bench, Scaffold(), first), bench.blobs, control=control)
    second = bench.perform(work)
    assert second.vectors["model"] not in (first.vectors["model"], plain.vectors["model"])
    change = bench.load(second.memory["control"]) - bench.load(first.memory["control"])
    np.testing.assert_allclose(bench.load(second.vectors["control_delta"]), change, atol=1e-6)


def test_missing_required_vector_is_unsupported(bench: Bench) -> None:
    with pytest.raises(Unsupported, match="'scaffold' needs the vector 'control'"):
        bench.train(objective=Scaffold())


@pytest.mark.parametrize("objective", [Sgd(), Prox(), Sam()])
def test_objective_without_memory_reports_none(bench: Bench, objective: Any) -> None:
    outcome = bench.train(objective=objective)
    assert "remembered" not in outcome.metrics
    assert outcome.memory == {}
    assert set(outcome.vectors) == {"model"}


def test_every_parameter_changes_the_result(bench: Bench) -> None:
    control = {"control": noise(1)}
    works = [visit_for(bench.blobs, objective=Prox(mu=mu)) for mu in (0.0, 0.1, 0.2)]
    works += [visit_for(bench.blobs, objective=Sam(rho=rho)) for rho in (0.1, 0.2)]
    works += [with_vectors(visit_for(bench.blobs, objective=Scaffold()), bench.blobs, **control)]
    works += [visit_for(bench.blobs, objective=Dyn(a=a), momentum=0.5) for a in (0.1, 0.2)]
    results = [bench.perform(work).vectors["model"].digest for work in works]
    assert len(set(results)) == len(works)
    assert results[0] == bench.train().vectors["model"].digest  # mu = 0, bit for bit


@pytest.mark.parametrize("harm", ["gone", "short", "flipped", "another model's"])
def test_lost_memory_restarts_clean_and_logs_a_warning(
    bench: Bench, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.perform(remembering(bench, Dyn(a=0.4), None))
    ref = first.memory["h"]
    work = remembering(bench, Dyn(a=0.4), first)
    data = bench.blobs.read(ref.digest)
    match harm:
        case "gone":
            work = msgspec.structs.replace(work, memory={"h": Ref(bytes(32), ref.size, "float32")})
        case "short":
            bench.blobs.put(data[:-4], ref.digest)
        case "flipped":
            bench.blobs.put(data[:-1] + bytes([data[-1] ^ 1]), ref.digest)
        case _:
            whole = bench.blobs.put(data[:-4])
            work = msgspec.structs.replace(work, memory={"h": Ref(whole, len(data) - 4, "float32")})
    outcome = bench.perform(work)
    assert outcome.metrics["remembered"] == 0
    assert outcome.vectors == first.vectors
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "job round 0 tour 1 hop 1: the objective's memory is lost and starts empty" in warning.getMessage()


class Device:
    """An agent that trains, with a journal from which it can be restarted at any time."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.now = bench, 0.0
        self.records: list[bytes] = []
        self.agent = self.born()
        self.remembered: list[float] = []

    def born(self) -> Agent:
        return Agent("d", Offer("1", "m", "r", 1, 0, ("dyn",), "npz"))

    def restart(self) -> None:
        self.agent = self.born()
        for record in self.records:
            self.agent.apply(msgspec.msgpack.decode(record, type=self.agent.record_form))
        self.perform(self.agent.start(self.now))

    def receive(self, message: Any) -> None:
        self.handle(Received(Address("edge", "e"), Epoch(1, bytes(8)), message))

    def handle(self, event: Any) -> None:
        self.perform(self.agent.handle(event, self.now))

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.records.append(msgspec.msgpack.encode(effect.record))
            elif isinstance(effect, Pull):
                self.handle(Pulled(effect.ref.digest))
            elif isinstance(effect, StartWork):
                outcome = self.bench.perform(effect.work)
                self.remembered.append(outcome.metrics["remembered"])
                self.handle(WorkDone(effect.key, outcome))


def in_round(bench: Bench, number: int) -> Any:
    visit = visit_for(bench.blobs, objective=Dyn(a=0.4), seed=number).visit
    return msgspec.structs.replace(visit, id=msgspec.structs.replace(visit.id, round=number))


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_restarts_and_late_replies_do_not_change_the_memory(bench: Bench, restarts: bool, late: bool) -> None:
    device = Device(bench)
    rounds = [in_round(bench, number) for number in range(3)]
    device.receive(rounds[0])
    for last, following in pairwise(rounds):
        words = [Accepted(last.id), following]
        for word in reversed(words) if late else words:
            device.receive(word)
            if restarts:
                device.restart()
    device.receive(Discarded(rounds[2].id, "not in line"))
    assert device.remembered == [0, 1, 2]
    expected: Trained | None = None
    for visit in rounds[:2]:
        work = remembering(bench, Dyn(a=0.4), expected)
        expected = bench.perform(msgspec.structs.replace(work, visit=visit))
    assert expected is not None
    assert device.agent.state.memory == {"job": Memory(expected.memory, 2)}
