"""Visits trained together must end as they would alone."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import fleet_sim
from edge_agent.training.messages import Warm, Warmed
from fleet_sim.engines import SerialEngine, batched
from fleet_sim.engines.batched import BatchedEngine
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.engines.shares import KINDS, assert_close, net, result, shards, train, visit

DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3", "dev-1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [64, 2])
def test_every_visit_matches_the_device_trainer(kind: str, together: int) -> None:
    ours = train(BatchedEngine(shards(), net(), together=together), kind, DEVICES)
    for one, other in zip(ours, train(SerialEngine(shards()), kind, DEVICES), strict=True):
        assert_close(one, other)


def test_visits_of_one_task_are_batched_and_others_separate(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    trained = batched._train

    def watched(group: list[batched._ReadyVisit]) -> None:
        groups.append(len(group))
        trained(group)

    monkeypatch.setattr(batched, "_train", watched)
    engine, blobs = BatchedEngine(shards(), net()), MemoryBlobs()
    futures = [
        engine.start(device, "key", visit(kind, blobs, seed), blobs)
        for seed, kind in enumerate(["sgd", "prox", "sgd", "elmy", "dyn"])
        for device in ("dev-0", "dev-1")
    ]
    fresh = msgspec.structs.replace(visit("dyn", blobs), memory={}, remembered=0)
    futures.append(engine.start("dev-2", "key", fresh, blobs))
    assert not any(future.done() for future in futures)
    futures[3].result()
    assert groups == [4, 2, 2, 1]  # sgd, prox, dyn with a memory, dyn without one
    assert all(future.done() for future in futures)


def test_failure_affects_only_its_own_visit() -> None:
    engine, blobs = BatchedEngine(shards(), net()), MemoryBlobs()
    work = visit("sgd", blobs)
    lacking = MemoryBlobs()
    lacking.put(blobs.read(work.visit.kit.digest), work.visit.kit.digest)
    good = engine.start("dev-0", "good", work, blobs)
    bad = {
        "data": engine.start("none", "empty", work, blobs),
        "data ": engine.start("dev-9", "unknown", work, blobs),
        "failed": engine.start("dev-0", "no model", work, lacking),
        "failed ": engine.start("dev-0", "no kit", work, MemoryBlobs()),
    }
    assert_close(result(good.result()), train(SerialEngine(shards()), "sgd")[0])
    for word, future in bad.items():
        event = future.result().event
        assert isinstance(event, WorkFailed)
        assert event.reason == word.strip()


def test_diverging_model_does_not_affect_others() -> None:
    engine, blobs = BatchedEngine(shards(), net()), MemoryBlobs()
    work = visit("sgd", blobs)
    wild = np.full(len(np.frombuffer(blobs.read(work.visit.vectors["model"].digest), np.float32)), np.nan, np.float32)
    from sojourn.model.vectors import save
    from tests.edge_agent.training.kits import compiled

    broken = save(blobs, wild, "float32", compiled().kit.model)
    lost = msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors={"model": broken}))
    futures = [engine.start("dev-0", "good", work, blobs), engine.start("dev-1", "lost", lost, blobs)]
    good, bad = (result(future.result()) for future in futures)
    assert_close(good, train(SerialEngine(shards()), "sgd")[0])
    assert np.isnan(bad.numbers["sent model"]).all()
    assert "loss" not in bad.metrics  # there is none to report


def test_warm_up_reports_the_sample_count() -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs).visit
    outcome = BatchedEngine(shards(), net()).start("dev-0", "key", Warm(work.kit, work.task), blobs).result()
    assert outcome.event == WorkDone("key", Warmed(18))


def test_closing_the_engine_cancels_waiting_visits() -> None:
    engine, blobs = BatchedEngine(shards(), net()), MemoryBlobs()
    future = engine.start("dev-0", "key", visit("sgd", blobs), blobs)
    engine.close()
    assert future.cancelled()


def test_cancelled_visit_is_not_trained() -> None:
    engine, blobs = BatchedEngine(shards(), net()), MemoryBlobs()
    futures = [engine.start("dev-0", str(number), visit("sgd", blobs), blobs) for number in range(2)]
    assert futures[0].cancel()
    assert isinstance(futures[1].result().event, WorkDone)
    assert futures[0].cancelled()


def test_tours_advance_together_hop_by_hop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If visits take the same time, all tours' visits of one hop form a group, though no tour waits for another."""
    groups: list[set[tuple[int, int]]] = []
    trained = batched._train

    def watched(group: list[batched._ReadyVisit]) -> None:
        groups.append({(ready.descent.work.visit.id.tour, ready.descent.work.visit.id.hop) for ready in group})
        trained(group)

    monkeypatch.setattr(batched, "_train", watched)
    settings = {
        "strategy": "visit",
        "rounds": 1,
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "training": {"epochs": 1, "batch": 16, "lr": 0.1},
        "simulation": {"devices": 40, "sites": 1, "trainer": "torch", "engine": "batched", "device": "cpu"},
        "split": {"by": "iid", "samples": 20},
    }
    fleet_sim.simulate(settings, tmp_path / "a")
    estimated, *hops = groups
    assert len(estimated) == 40
    assert len(hops) > 2
    assert hops == [{(40, hop), (41, hop)} for hop in range(len(hops))]
