"""The serial engine gives what a real device gives, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from edge_agent.training.trainer import Trainer
from edge_agent.training.work import Trained, Warm, Warmed
from fleet_sim.engines import Outcome, SerialEngine
from fleet_sim.engines.engine import outcome_of
from sojourn.data.source import DataSettings
from sojourn.node.machine import Did, DidNot
from sojourn.store.memory_blobs import MemoryBlobs
from tests.fleet_sim.engines.shares import KINDS, NAMES, assert_same, result, shards, train, visit

if TYPE_CHECKING:
    from pathlib import Path


def real_device(folder: Path, device: str, kind: str, seed: int = 11) -> Outcome:
    """The same visit at an agent's trainer, which reads the device's samples from a file."""
    rows = shards().rows[device]
    path = folder / f"{device}.npz"
    np.savez(path, x=shards().x[rows], y=np.array(NAMES)[shards().y[rows]])
    blobs = MemoryBlobs()
    trained = Trainer(blobs, DataSettings(path=str(path))).perform(visit(kind, blobs, seed))
    return outcome_of(Did("real", trained), blobs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_visit_is_that_of_a_real_device(kind: str, tmp_path: Path) -> None:
    (ours,) = train(SerialEngine(shards()), kind)
    assert_same(ours, result(real_device(tmp_path, "dev-0", kind)))


def test_samples_of_classes_that_the_job_does_not_know_are_left_out() -> None:
    (ours,) = train(SerialEngine(shards()), "class-counts")
    assert ours.trained.samples == 18
    job_numbers = [{"cat": 0, "dog": 1, "owl": 2}.get(NAMES[label]) for label in shards().y[shards().rows["dev-0"]]]
    assert ours.trained.signature == tuple(float(job_numbers.count(number)) for number in range(3))


def test_the_blobs_of_a_visit_are_handed_out_and_not_put_into_the_store() -> None:
    blobs = MemoryBlobs()
    outcome = SerialEngine(shards()).start("dev-0", "key", visit("dyn", blobs), blobs).result()
    assert isinstance(outcome.event, Did)
    trained = outcome.event.outcome
    assert set(outcome.blobs) == {trained.vectors["model"].digest, trained.memory["h"].digest}
    assert not any(blobs.has(digest) for digest in outcome.blobs)


def test_warming_says_how_many_samples_there_are() -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs).visit
    outcome = SerialEngine(shards()).start("dev-0", "key", Warm(work.kit, work.task), blobs).result()
    assert outcome == Outcome(Did("key", Warmed(18)), {})


def test_an_empty_device_says_so() -> None:
    blobs = MemoryBlobs()
    event = SerialEngine(shards()).start("none", "key", visit("sgd", blobs), blobs).result().event
    assert isinstance(event, DidNot)
    assert event.reason == "data"
    assert "none's share of the data set: there are no samples in it" in event.detail


def test_a_device_without_a_share_is_told_apart_from_an_empty_one() -> None:
    blobs = MemoryBlobs()
    event = SerialEngine(shards()).start("dev-9", "key", visit("sgd", blobs), blobs).result().event
    assert event == DidNot("key", "data", "the data set has no share for a device 'dev-9'")


def test_a_model_that_is_gone_fails_the_visit() -> None:
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    blobs.sweep({work.visit.kit.digest})
    event = SerialEngine(shards()).start("dev-0", "key", work, blobs).result().event
    assert isinstance(event, DidNot)
    assert event.reason == "failed"


def test_a_memory_that_is_gone_is_begun_anew() -> None:
    blobs = MemoryBlobs()
    work = visit("dyn", blobs)
    blobs.sweep({work.visit.kit.digest, work.visit.vectors["model"].digest})
    lost = result(SerialEngine(shards()).start("dev-0", "key", work, blobs).result())
    clean = msgspec.structs.replace(visit("dyn", blobs), memory={}, remembered=0)
    anew = result(SerialEngine(shards()).start("dev-0", "key", clean, blobs).result())
    assert_same(lost, anew)
    assert lost.metrics["remembered"] == 0


def test_kits_beyond_a_few_are_let_go_and_come_back() -> None:
    engine = SerialEngine(shards())
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    for threads in (1, 2, 3, 4, 5, 1):
        task = msgspec.structs.replace(work.visit.task, threads=threads)
        changed = msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, task=task))
        event = engine.start("dev-2", "key", changed, blobs).result().event
        assert isinstance(event, Did)
        assert isinstance(event.outcome, Trained)
    assert len(engine._trainer._kits) == 4


def test_the_data_set_itself_is_kept_as_compact_as_it_is() -> None:
    from tests.edge_agent.training.kits import compiled

    floats = replace(shards(), x=shards().x.astype(np.float32))
    kit = compiled().kit
    assert shards().samples("dev-0", kit).x.dtype == np.uint8
    assert floats.samples("dev-0", kit).x.dtype == np.float32
