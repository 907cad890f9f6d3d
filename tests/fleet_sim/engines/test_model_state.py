"""Models with state (BatchNorm) in every engine: the device's bits with its graphs, close results with torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fleet_sim.engines import Network, ProcessPoolEngine, SerialEngine
from fleet_sim.engines.batched import BatchedEngine
from fleet_sim.engines.torch_graphs import TorchEngine, TorchGraphs
from fleet_sim.engines.untrained import UntrainedEngine
from sojourn.model.graphs import Graphs, check_probe
from sojourn.model.vectors import decode
from sojourn.node.machine import WorkDone
from sojourn.parts import Elmy, Sam
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import MEAN, STD, compiled_with_state, network_with_state, visit_for
from tests.fleet_sim.engines.shares import shards

if TYPE_CHECKING:
    from fleet_sim.engines import Engine

DEVICES = ("dev-0", "dev-1", "dev-2", "dev-3")
"""The last device has one sample, and the second one left over for its last batch."""
KINDS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 0.01},
    "sam": {"objective": Sam(rho=0.3)},
    "elmy": {"objective": Elmy(models=2, warmup=1)},
}


def net() -> Network:
    return Network(network_with_state(), [MEAN], [STD])


def ends(engine: Engine, kind: str) -> list[Any]:
    """Return the models with which the same visit ends at several devices, all started at once."""
    futures = []
    for number, device in enumerate(DEVICES):
        blobs = MemoryBlobs()
        work = visit_for(blobs, model=compiled_with_state(), seed=11 + number, **KINDS[kind])
        futures.append(engine.start(device, f"visit {number}", work, blobs))
    found = []
    for outcome in (future.result() for future in futures):
        assert isinstance(outcome.event, WorkDone), outcome.event
        ref = outcome.event.outcome.vectors["model"]
        found.append(decode(outcome.blobs[ref.digest], ref.encoding, compiled_with_state().kit.model))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [TorchEngine, BatchedEngine])
def test_torch_result_is_close_to_the_device_trainer(make: Any, kind: str) -> None:
    for ours, theirs in zip(ends(make(shards(), net()), kind), ends(SerialEngine(shards()), kind), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


def test_process_pool_gives_the_same_bits() -> None:
    pool = ProcessPoolEngine(shards(), 2)
    try:
        ours = ends(pool, "sgd")
    finally:
        pool.close()
    assert [each.tobytes() for each in ours] == [each.tobytes() for each in ends(SerialEngine(shards()), "sgd")]


def test_torch_passes_the_probe_and_never_splits_a_batch() -> None:
    graphs = TorchGraphs(compiled_with_state().kit, net())
    assert check_probe(compiled_with_state().kit, graphs) is None
    assert not graphs._adds_up
    x, y = np.ones((3, 1, 8, 8), np.float32), np.array([0, 1, 2])
    vector = compiled_with_state().initial
    loss, _ = Graphs(compiled_with_state().kit).loss_and_gradient(vector, x, y)
    assert graphs.loss_and_gradient(vector, x, y)[0] == pytest.approx(loss, rel=1e-5)


def test_untrained_engine_keeps_the_state() -> None:
    blobs, made = MemoryBlobs(), compiled_with_state()
    work = visit_for(blobs, model=made)
    outcome = UntrainedEngine(shards()).start("dev-0", "key", work, blobs).result()
    assert isinstance(outcome.event, WorkDone)
    ref = outcome.event.outcome.vectors["model"]
    model = decode(outcome.blobs[ref.digest], "float32", made.kit.model)
    assert np.array_equal(model[made.kit.model.trainable_size :], made.initial[made.kit.model.trainable_size :])
    assert not np.array_equal(model, made.initial)
