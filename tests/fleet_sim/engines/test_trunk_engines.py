"""Kits with a trunk in a simulation: features of each device are computed once, and all engines agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from edge_agent.training.features import FeatureSamples, TrunkSamples
from fleet_sim.engines import Network, SerialEngine
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.serial import FeatureMemory, VisitTrainer
from fleet_sim.engines.side_by_side import LocalVisit, SideBySideTrainer
from fleet_sim.engines.torch_graphs import TorchEngine
from sojourn.model.exemplars import Exemplars
from sojourn.model.graphs import Graphs
from sojourn.model.vectors import load
from sojourn.node.machine import WorkDone
from sojourn.protocol.envelope import pack_blob
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import MEAN, STD, cut, network_with_frozen_trunk, uncut, visit_for
from tests.fleet_sim.engines.shares import KINDS, shards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edge_agent.training.messages import Train
    from fleet_sim.engines import Engine, Outcome

DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")
EXEMPLARS = pack_blob(
    Exemplars.of(np.random.default_rng(9).integers(0, 17, (6, 1, 8, 8), dtype=np.uint8), np.arange(6) % 3)
)


def visit(kind: str, blobs: MemoryBlobs, made: Any) -> Train:
    work = visit_for(blobs, model=made, **KINDS[kind])
    blobs.put(EXEMPLARS)
    vectors = work.visit.vectors | ({"exemplars": ref_of(EXEMPLARS)} if kind == "signature" else {})
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors=vectors))


def numbers(outcome: Outcome) -> NDArray[np.float32]:
    """Return the resulting model of a visit, or what it reported instead."""
    assert isinstance(outcome.event, WorkDone), outcome.event
    done, store = outcome.event.outcome, MemoryBlobs()
    for digest, data in outcome.blobs.items():
        store.put(data, digest)
    if "model" not in done.vectors:
        return np.array(done.signature, np.float32)
    return load(store, done.vectors["model"], cut().kit.model)


def trained(engine: Engine, kind: str, made: Any) -> list[NDArray[np.float32]]:
    stores = [MemoryBlobs() for _ in DEVICES]
    futures = [
        engine.start(device, f"at {device}", visit(kind, blobs, made), blobs)
        for device, blobs in zip(DEVICES, stores, strict=True)
    ]
    return [numbers(future.result()) for future in futures]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many samples pass through a trunk at a time."""
    found: list[int] = []
    features = Graphs.features

    def counted(graphs: Graphs, x: NDArray[np.generic]) -> NDArray[np.generic]:
        found.append(len(x) if graphs.has_trunk else 0)
        return features(graphs, x)

    monkeypatch.setattr(Graphs, "features", counted)
    return found


@pytest.mark.parametrize("kind", ["momentum", "elmy", "signature", "class-counts"])
def test_all_engines_train_like_the_whole_model(kind: str) -> None:
    network = Network(network_with_frozen_trunk(), [MEAN], [STD])
    whole = trained(SerialEngine(shards()), kind, uncut())
    for engine in (SerialEngine(shards()), TorchEngine(shards(), network), BatchedEngine(shards(), network)):
        for one, other in zip(trained(engine, kind, cut()), whole, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_second_visit_skips_the_trunk_and_keeps_the_bits(rows: list[int]) -> None:
    engine = SerialEngine(shards())
    first = trained(engine, "momentum", cut())
    assert sum(rows) > 0
    rows.clear()
    again = trained(engine, "momentum", cut())
    assert sum(rows) == 0
    assert [each.tobytes() for each in first] == [each.tobytes() for each in again]


def test_parallel_steps_give_the_bits_of_single_visits() -> None:
    stores = [MemoryBlobs() for _ in DEVICES]
    visits = [
        LocalVisit(shards(), device, device, visit("momentum", blobs, cut()), blobs.read, blobs)
        for device, blobs in zip(DEVICES, stores, strict=True)
    ]
    outcomes, together = SideBySideTrainer(VisitTrainer()).train(visits)
    assert together == len(DEVICES)
    alone = trained(SerialEngine(shards()), "momentum", cut())
    assert [numbers(each).tobytes() for each in outcomes] == [each.tobytes() for each in alone]


def test_feature_memory_stays_within_its_limit() -> None:
    graphs, samples = Graphs(cut().kit), shards().samples("dev-1", cut().kit)
    size = len(samples) * 16 * 4
    memory = FeatureMemory(2 * size)
    for key in ("a", "b"):
        assert isinstance(memory.made(key, samples, graphs, "float32"), FeatureSamples)
    assert memory.find("a")
    memory.made("c", samples, graphs, "float32")
    assert [key for key in "abc" if memory.find(key)] == ["a", "c"]
    each_time = FeatureMemory(size - 1).made("a", samples, graphs, "float32")
    assert isinstance(each_time, TrunkSamples)
    index = np.array([3, 1, 3])
    found = memory.find("c")
    assert found
    for one, other in zip(each_time.batch(index, "float32"), found.batch(index, "float32"), strict=True):
        assert one.tobytes() == other.tobytes()
