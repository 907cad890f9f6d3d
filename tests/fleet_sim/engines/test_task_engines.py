"""Tasks without classes in a simulation: all engines agree, or report what they do not support."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import compile_kit
from coordinator.compiling.losses import Learning, learning_of
from fleet_sim.engines import Network, SerialEngine, Shards
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.process_pool import ProcessPoolEngine
from fleet_sim.engines.torch_graphs import TorchEngine, TorchGraphs
from fleet_sim.engines.untrained import UntrainedEngine
from sojourn.errors import ModelError
from sojourn.model.exemplars import Exemplars
from sojourn.model.strata import strata_of
from sojourn.model.vectors import load
from sojourn.node.machine import WorkDone
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import Strata, Target, TaskSpec
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import visit_for
from tests.fleet_sim.engines.shares import KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from coordinator.compiling.kits import Compiled
    from edge_agent.training.messages import Train
    from fleet_sim.engines import Engine

DEVICES = ("dev-0", "dev-1", "dev-2")
MEAN, STD = (5.0, -2.0), (2.0, 3.0)
VISITS = ("sgd", "adam", "elmy", "signature", "class-counts")
TASKS = {
    "regression": TaskSpec(
        "regression",
        (2,),
        Target((2,)),
        Strata(2, centres=((3.0, 0.0), (7.0, -4.0)), scale=(1.0, 1.0)),
        loss="huber",
    ),
    "reconstruction": TaskSpec(
        "reconstruction",
        (4, 2),
        None,
        Strata(2, centres=((0.0,) * 8, (4.0,) * 8), scale=(1.0,) * 8),
        loss="mse",
    ),
}


def module(kind: str) -> nn.Module:
    torch.manual_seed(2)
    head = [nn.Linear(6, 2)] if kind == "regression" else [nn.Linear(6, 8), nn.Unflatten(1, (4, 2))]
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Dropout(0.2), *head)


def learning(kind: str) -> Learning:
    return learning_of(TASKS[kind], MEAN, STD)


@cache
def made(kind: str) -> Compiled:
    mean, std = (MEAN, STD) if kind == "reconstruction" else (None, None)
    return compile_kit(module(kind), InputSpec((4, 2)), (), mean=mean, std=std, seed=3, learning=learning(kind))


def network(kind: str) -> Network:
    mean, std = (MEAN, STD) if kind == "reconstruction" else (None, None)
    return Network(module(kind), mean, std, learning=learning(kind))


@cache
def shards(kind: str) -> Shards:
    draw = np.random.default_rng(4)
    x = (draw.standard_normal((60, 4, 2)) * STD + MEAN).astype(np.float32)
    y = x.mean(axis=1) if kind == "regression" else np.zeros(60, np.int64)
    return Shards(x, y, (), {name: np.arange(at, 60, 3)[: 20 - 4 * at] for at, name in enumerate(DEVICES)})


def exemplars(kind: str) -> bytes:
    x, y = shards(kind).x[:24], shards(kind).y[:24]
    return pack_blob(Exemplars.of(x, strata_of(TASKS[kind], x, y), None if kind == "reconstruction" else y))


def visit(task: str, kind: str, blobs: MemoryBlobs) -> Train:
    work = visit_for(blobs, model=made(task), **KINDS[kind])
    blobs.put(exemplars(task))
    vectors = work.visit.vectors | ({"exemplars": ref_of(exemplars(task))} if kind == "signature" else {})
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors=vectors))


def trained(engine: Engine, task: str, kind: str) -> list[NDArray[np.float32]]:
    stores = [MemoryBlobs() for _ in DEVICES]
    futures = [
        engine.start(device, f"at {device}", visit(task, kind, blobs), blobs)
        for device, blobs in zip(DEVICES, stores, strict=True)
    ]
    found: list[NDArray[np.float32]] = []
    for future in futures:
        outcome, store = future.result(), MemoryBlobs()
        assert isinstance(outcome.event, WorkDone), outcome.event
        for digest, data in outcome.blobs.items():
            store.put(data, digest)
        done: Any = outcome.event.outcome
        ref = done.vectors.get("model")
        found.append(load(store, ref, made(task).kit.model) if ref else np.array(done.signature, np.float32))
    return found


@pytest.mark.parametrize("task", TASKS)
def test_all_engines_give_the_same_result(task: str) -> None:
    serial, pool = SerialEngine(shards(task)), ProcessPoolEngine(shards(task), 1)
    try:
        for kind in VISITS:
            wanted = trained(serial, task, kind)
            assert [each.tobytes() for each in trained(pool, task, kind)] == [each.tobytes() for each in wanted]
            if kind in ("elmy", "class-counts"):
                continue
            for by_torch in (TorchEngine, BatchedEngine):
                for ours, theirs in zip(
                    trained(by_torch(shards(task), network(task)), task, kind), wanted, strict=True
                ):
                    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)
    finally:
        pool.close()


@pytest.mark.parametrize("task", TASKS)
def test_untrained_engine_signatures_follow_the_strata(task: str) -> None:
    counts = trained(SerialEngine(shards(task)), task, "class-counts")
    assert [row.sum() for row in counts] == [20, 16, 12]
    rows = trained(UntrainedEngine(shards(task)), task, "signature")
    shares = [np.array(row) / row.sum() for row in counts]
    np.testing.assert_allclose(rows, shares, atol=0.02)


def test_torch_refuses_unsupported_tasks_with_a_reason() -> None:
    kit = made("regression").kit
    assert kit.task
    with_reference = msgspec.structs.replace(kit, task=msgspec.structs.replace(kit.task, reference_models=("start",)))
    with pytest.raises(ModelError, match=r"task\.reference_models"):
        TorchGraphs(with_reference, network("regression"))
    with pytest.raises(ModelError, match="needs the loss"):
        TorchGraphs(kit, Network(module("regression")))
