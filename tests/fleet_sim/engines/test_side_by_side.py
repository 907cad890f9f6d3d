"""Visits trained together give the bits of each alone: every objective, optimiser, estimator and share size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleet_sim.engines import SerialEngine
from fleet_sim.engines import side_by_side as side_by_side_graphs
from fleet_sim.engines.engine import brought
from fleet_sim.engines.serial import VisitTrainer
from fleet_sim.engines.side_by_side import CHECKED, LocalVisit, SideBySideGraphs, SideBySideTrainer, side_by_side
from sojourn.node.machine import WorkFailed
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import compiled
from tests.fleet_sim.engines.shares import KINDS, assert_same, result, shards, train, visit

if TYPE_CHECKING:
    from fleet_sim.engines import Outcome
    from sojourn.protocol.spec import Kit

DEVICES = ("dev-2", "dev-0", "dev-3", "dev-1", "dev-0")
"""8, 18, 1, 33 and again 18 samples: five steps with all intermediate numbers of copies."""
ALONE = {"elmy", "sizes", "class-counts"}


def together(
    kind: str, devices: tuple[str, ...] = DEVICES, trainer: SideBySideTrainer | None = None
) -> tuple[list[Outcome], int]:
    visits = []
    for at, device in enumerate(devices):
        blobs, store = MemoryBlobs(), MemoryBlobs()
        work = visit(kind, blobs, 11 + at)
        for digest, data in brought(work, blobs).items():
            store.put(data, digest)
        visits.append(LocalVisit(shards(), device, f"visit {at}", work, blobs.read, store))
    return (trainer or SideBySideTrainer(VisitTrainer())).train(visits)


@pytest.mark.parametrize("kind", KINDS)
def test_each_visit_gives_the_same_bits_as_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side_graphs, "CHECKED", 0)  # so that the copies' own bits are tested
    outcomes, count = together(kind)
    assert count == (0 if kind in ALONE else len(DEVICES))
    for ours, theirs in zip(outcomes, train(SerialEngine(shards()), kind, DEVICES), strict=True):
        assert_same(result(ours), theirs)


def test_visit_that_cannot_run_fails_alone() -> None:
    outcomes, count = together("sgd", ("dev-0", "none", "dev-1"))
    assert count == 2
    event = outcomes[1].event
    assert isinstance(event, WorkFailed)
    assert event.reason == "data"
    alone = train(SerialEngine(shards()), "sgd", ("dev-0", "dev-0", "dev-1"))
    assert_same(result(outcomes[0]), alone[0])
    assert_same(result(outcomes[2]), alone[2])


def test_graph_copies_with_different_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_bits(kit: Kit, copies: int) -> bytes | None:
        """A graph with another kit's normalisation, as if its kernels rounded differently."""
        made = side_by_side(kit, copies)
        assert made is not None
        return _with_changed_constant(made)

    monkeypatch.setattr(side_by_side_graphs, "side_by_side", other_bits)
    trainer = SideBySideTrainer(VisitTrainer())
    outcomes, _ = together("sgd", trainer=trainer)
    for ours, theirs in zip(outcomes, train(SerialEngine(shards()), "sgd", DEVICES), strict=True):
        assert_same(result(ours), theirs)
    assert trainer._graphs is not None
    assert not any(trainer._graphs[1]._sessions.values())


def _with_changed_constant(graph: bytes) -> bytes:
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(graph)
    floats = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.FLOAT]
    assert floats
    for each in floats:
        each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) * 1.5, each.name))
    return bytes(model.SerializeToString())


def test_too_large_graph_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side_graphs, "MAX_NODES", 10)
    assert side_by_side(compiled().kit, 2) is None
    outcomes, _ = together("adam")
    for ours, theirs in zip(outcomes, train(SerialEngine(shards()), "adam", DEVICES), strict=True):
        assert_same(result(ours), theirs)


def test_only_the_first_runs_are_compared() -> None:
    trainer = SideBySideTrainer(VisitTrainer())
    for _ in range(CHECKED):
        together("momentum", trainer=trainer)
    assert trainer._graphs is not None
    graphs = trainer._graphs[1]
    assert isinstance(graphs, SideBySideGraphs)
    assert graphs._sessions[4] is not None
    assert graphs._checks[4] == 0
