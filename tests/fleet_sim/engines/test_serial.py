"""The serial engine gives a real device's results, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from edge_agent.training.messages import Trained, Warm, Warmed
from edge_agent.training.trainer import Trainer
from fleet_sim.engines import Outcome, SerialEngine
from fleet_sim.engines.engine import outcome_of
from sojourn.data.source import DataSettings
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.engines.shares import KINDS, NAMES, assert_same, result, shards, train, visit

if TYPE_CHECKING:
    from pathlib import Path


def real_device(folder: Path, device: str, kind: str, seed: int = 11) -> Outcome:
    """Return the same visit's results from an agent's trainer, which reads the device's samples from a file."""
    rows = shards().rows[device]
    path = folder / f"{device}.npz"
    np.savez(path, x=shards().x[rows], y=np.array(NAMES)[shards().y[rows]])
    blobs = MemoryBlobs()
    trained = Trainer(blobs, DataSettings(path=str(path))).perform(visit(kind, blobs, seed))
    return outcome_of(WorkDone("real", trained), blobs)


@pytest.mark.parametrize("kind", KINDS)
def test_visit_matches_a_real_device(kind: str, tmp_path: Path) -> None:
    (ours,) = train(SerialEngine(shards()), kind)
    assert_same(ours, result(real_device(tmp_path, "dev-0", kind)))


def test_samples_of_unknown_classes_are_skipped() -> None:
    (ours,) = train(SerialEngine(shards()), "class-counts")
    assert ours.trained.samples == 18
    job_numbers = [{"cat": 0, "dog": 1, "owl": 2}.get(NAMES[label]) for label in shards().y[shards().rows["dev-0"]]]
    assert ours.trained.signature == tuple(float(job_numbers.count(number)) for number in range(3))


def test_result_blobs_are_returned_and_not_stored() -> None:
    blobs = MemoryBlobs()
    outcome = SerialEngine(shards()).start("dev-0", "key", visit("dyn", blobs), blobs).result()
    assert isinstance(outcome.event, WorkDone)
    trained = outcome.event.outcome
    assert set(outcome.blobs) == {trained.vectors["model"].digest, trained.memory["h"].digest}
    assert not any(blobs.has(digest) for digest in outcome.blobs)


def test_warm_up_reports_the_sample_count() -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs).visit
    outcome = SerialEngine(shards()).start("dev-0", "key", Warm(work.kit, work.task), blobs).result()
    assert outcome == Outcome(WorkDone("key", Warmed(18)), {})


def test_device_with_empty_share_reports_no_samples() -> None:
    blobs = MemoryBlobs()
    event = SerialEngine(shards()).start("none", "key", visit("sgd", blobs), blobs).result().event
    assert isinstance(event, WorkFailed)
    assert event.reason == "data"
    assert "none's share of the data set has no samples" in event.detail


def test_device_without_a_share_gets_a_different_error() -> None:
    blobs = MemoryBlobs()
    event = SerialEngine(shards()).start("dev-9", "key", visit("sgd", blobs), blobs).result().event
    assert event == WorkFailed("key", "data", "the data set has no share for a device 'dev-9'")


def test_missing_model_fails_the_visit() -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    blobs.sweep({work.visit.kit.digest})
    event = SerialEngine(shards()).start("dev-0", "key", work, blobs).result().event
    assert isinstance(event, WorkFailed)
    assert event.reason == "failed"


def test_missing_memory_restarts_clean() -> None:
    blobs = MemoryBlobs()
    work = visit("dyn", blobs)
    blobs.sweep({work.visit.kit.digest, work.visit.vectors["model"].digest})
    lost = result(SerialEngine(shards()).start("dev-0", "key", work, blobs).result())
    clean = msgspec.structs.replace(visit("dyn", blobs), memory={}, remembered=0)
    repeated = result(SerialEngine(shards()).start("dev-0", "key", clean, blobs).result())
    assert_same(lost, repeated)
    assert lost.metrics["remembered"] == 0


def test_old_kits_are_evicted_and_can_be_reloaded() -> None:
    engine = SerialEngine(shards())
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    for threads in (1, 2, 3, 4, 5, 1):
        task = msgspec.structs.replace(work.visit.task, threads=threads)
        changed = msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, task=task))
        event = engine.start("dev-2", "key", changed, blobs).result().event
        assert isinstance(event, WorkDone)
        assert isinstance(event.outcome, Trained)
    assert len(engine._trainer._kits) == 4


def test_data_set_keeps_its_compact_dtype() -> None:
    from tests.edge_agent.training.kits import compiled

    floats = replace(shards(), x=shards().x.astype(np.float32))
    kit = compiled().kit
    assert shards().samples("dev-0", kit).x.dtype == np.uint8
    assert floats.samples("dev-0", kit).x.dtype == np.float32
