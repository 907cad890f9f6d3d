"""Torch instead of onnxruntime: the same visits within rounding."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from fleet_sim.engines import Network, SerialEngine
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.torch_graphs import TorchEngine, TorchGraphs
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.vectors import load, save
from sojourn.node.machine import WorkFailed
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.spec import InputSpec
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import CLASSES, MEAN, STD, compiled
from tests.fleet_sim.engines.shares import KINDS, assert_close, net, shards, train, visit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet_sim.engines import Engine

DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")


@pytest.mark.parametrize("kind", KINDS)
def test_torch_matches_the_device_trainer(kind: str) -> None:
    ours, theirs = (train(engine, kind, DEVICES) for engine in (TorchEngine(shards(), net()), SerialEngine(shards())))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)


def test_training_really_uses_torch() -> None:
    (ours,), (theirs,) = (train(e, "momentum") for e in (TorchEngine(shards(), net()), SerialEngine(shards())))
    assert ours.trained.vectors != theirs.trained.vectors


def test_module_that_differs_from_the_kit_is_refused() -> None:
    blobs = MemoryBlobs()
    wrong = replace(net(), std=[2 * STD])
    event = TorchEngine(shards(), wrong).start("dev-0", "key", visit("sgd", blobs), blobs).result().event
    assert isinstance(event, WorkFailed)
    assert event.reason == "runtime"


def test_training_leaves_the_module_unchanged() -> None:
    network = net()
    before = [parameter.detach().clone() for parameter in network.module.parameters()]
    train(TorchEngine(shards(), network), "sgd")
    assert all(torch.equal(a, b) for a, b in zip(before, network.module.parameters(), strict=True))


def test_batched_gradients_equal_those_of_each_model() -> None:
    graphs, kit = TorchGraphs(compiled().kit, net()), compiled().kit
    assert check_probe(kit, graphs) is None
    draw = np.random.default_rng(2)
    vectors = draw.normal(0, 0.1, (3, kit.model.size)).astype(np.float32)
    x = draw.integers(0, 17, (3, 5, 1, 8, 8)).astype(np.float32)
    y = draw.integers(0, 3, (3, 5))
    sizes = (5, 2, 4)
    weights = np.array([[1 / size if at < size else 0 for at in range(5)] for size in sizes], np.float32)
    together = [torch.from_numpy(each) for each in (vectors, x, y, weights)]
    losses, gradients = graphs.losses_and_gradients(together[0], together[1], together[2], together[3], [])
    for at, size in enumerate(sizes):
        loss, gradient = Graphs(kit).loss_and_gradient(vectors[at], x[at, :size], y[at, :size])
        assert losses[at].item() == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(gradients[at].numpy(), gradient, atol=1e-6)


def dropping() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, len(CLASSES))
        )


@cache
def dropping_kit() -> Compiled:
    return compile_kit(dropping(), InputSpec((1, 8, 8)), CLASSES, mean=[MEAN], std=[STD], seed=3)


def dropped(engine: Engine) -> list[NDArray[np.float32]]:
    """Two epochs with dropout at each device; some of their last batches are short."""
    futures = []
    for number, device in enumerate(DEVICES):
        blobs = MemoryBlobs()
        work = visit("sgd", blobs, 21 + number).visit
        data = pack_blob(dropping_kit().kit)
        model = save(blobs, dropping_kit().initial, "float32", dropping_kit().kit.model)
        task = msgspec.structs.replace(work.task, training=msgspec.structs.replace(work.task.training, epochs=2))
        kit = ref_of(data)
        blobs.put(data, kit.digest)
        changed = msgspec.structs.replace(work, kit=kit, vectors={"model": model}, task=task)
        whole = msgspec.structs.replace(visit("sgd", blobs), visit=changed)
        futures.append(engine.start(device, "key", whole, blobs))
    found = []
    for future in futures:
        store = MemoryBlobs()
        outcome = future.result()
        for digest, content in outcome.blobs.items():
            store.put(content, digest)
        found.append(load(store, outcome.event.outcome.vectors["model"], dropping_kit().kit.model))  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("kind", [TorchEngine, BatchedEngine])
def test_dropout_draws_the_same_numbers_as_a_device(kind: type[TorchEngine | BatchedEngine]) -> None:
    theirs = dropped(SerialEngine(shards()))
    ours = dropped(kind(shards(), Network(dropping(), [MEAN], [STD])))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
