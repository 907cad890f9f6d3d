"""A data set, devices with unequal shares of it, and visits of every kind for testing engines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from edge_agent.training.messages import Train, Trained, Warm, Warmed
from fleet_sim.engines import Network, Shards
from sojourn.model.exemplars import Exemplars
from sojourn.model.vectors import load, save
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.parts import (
    ClassCountEstimator,
    ClassifierEstimator,
    Dyn,
    Elmy,
    Prox,
    Sam,
    Scaffold,
    SignatureEstimator,
    SizeEstimator,
    UpdateEstimator,
)
from sojourn.protocol.envelope import pack_blob
from sojourn.randomness import generator
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.edge_agent.training.kits import CLASSES, MEAN, STD, compiled, network, visit_for, with_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet_sim.engines import Engine, Outcome

NAMES = ("bird", *CLASSES[::-1])
"""The data set's classes, in another order than the job's, and with one that the job lacks."""
SIZES = {"dev-0": 20, "dev-1": 33, "dev-2": 8, "dev-3": 1, "none": 0}

KINDS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2},
    "adam": {"optimiser": "adam", "lr": 0.01, "epochs": 2},
    "int8": {"encoding": "int8"},
    "prox": {"objective": Prox(mu=0.5), "epochs": 2},
    "dyn": {"objective": Dyn(a=0.3), "epochs": 2},
    "scaffold": {"objective": Scaffold(), "epochs": 2},
    "sam": {"objective": Sam(rho=0.3), "epochs": 2},
    "elmy": {"objective": Elmy(models=2, warmup=1), "epochs": 2},
    "signature": {"kind": "estimate", "estimator": SignatureEstimator(where="device"), "epochs": 2},
    "classifier": {"kind": "estimate", "estimator": ClassifierEstimator(where="device", layers="last")},
    "update": {"kind": "estimate", "estimator": UpdateEstimator(epochs=1)},
    "sizes": {"kind": "estimate", "estimator": SizeEstimator()},
    "class-counts": {"kind": "estimate", "estimator": ClassCountEstimator()},
}


@cache
def shards() -> Shards:
    draw = np.random.default_rng(5)
    total = sum(SIZES.values()) + 10
    x = draw.integers(0, 17, (total, 8, 8), dtype=np.uint8)
    y = draw.integers(1, len(NAMES), total)
    order, at, rows = draw.permutation(total), 0, {}
    for device, size in SIZES.items():
        rows[device] = order[at : at + size]
        at += size
    y[rows["dev-0"][:2]] = 0  # birds, which are left out
    return Shards(x, y, NAMES, rows)


def net() -> Network:
    return Network(network(), [MEAN], [STD])


def random_vector(name: str, scale: float) -> NDArray[np.float32]:
    return scale * generator(1, name).standard_normal(compiled().kit.model.size, dtype=np.float32)


def visit(kind: str, blobs: MemoryBlobs, seed: int = 11) -> Train:
    """Return a visit of this kind, with its blobs and the device's saved state."""
    work = visit_for(blobs, seed=seed, **KINDS[kind])
    spec = compiled().kit.model
    if kind == "dyn":
        memory = {"h": save(blobs, random_vector(f"h {seed}", 0.02), "float32", spec)}
        return msgspec.structs.replace(work, memory=memory, remembered=3)
    if kind == "scaffold":
        memory = {"control": save(blobs, random_vector(f"c_k {seed}", 0.02), "float32", spec)}
        work = with_vectors(work, blobs, control=random_vector("c", 0.02))
        return msgspec.structs.replace(work, memory=memory, remembered=1)
    if kind == "signature":
        x = np.random.default_rng(9).integers(0, 17, (6, 1, 8, 8), dtype=np.uint8)
        data = pack_blob(Exemplars.of(x, np.array([0, 0, 1, 1, 2, 2])))
        ref = ref_of(data)
        blobs.put(data, ref.digest)
        return msgspec.structs.replace(
            work, visit=msgspec.structs.replace(work.visit, vectors=work.visit.vectors | {"exemplars": ref})
        )
    return work


@dataclass(frozen=True)
class TrainedVectors:
    """The numeric results of a visit."""

    trained: Trained
    numbers: dict[str, NDArray[np.float32]]

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics except the duration."""
        return {name: value for name, value in self.trained.metrics.items() if name != "seconds"}


def result(outcome: Outcome) -> TrainedVectors:
    assert isinstance(outcome.event, WorkDone), outcome.event
    trained = outcome.event.outcome
    store = MemoryBlobs()
    for digest, data in outcome.blobs.items():
        store.put(data, digest)
    refs = {f"sent {name}": ref for name, ref in trained.vectors.items()}
    refs |= {f"kept {name}": ref for name, ref in trained.memory.items()}
    return TrainedVectors(trained, {name: load(store, ref, compiled().kit.model) for name, ref in refs.items()})


def train(engine: Engine, kind: str, devices: tuple[str, ...] = ("dev-0",), **how: Any) -> list[TrainedVectors]:
    """Start this visit at several devices at once, each with its own seed, and wait for all."""
    futures = []
    for number, device in enumerate(devices):
        blobs = MemoryBlobs()
        futures.append(engine.start(device, f"visit {number}", visit(kind, blobs, 11 + number), blobs, **how))
    return [result(future.result()) for future in futures]


def assert_same(ours: TrainedVectors, theirs: TrainedVectors) -> None:
    """Compare bit for bit."""
    assert ours.trained.vectors == theirs.trained.vectors
    assert ours.trained.memory == theirs.trained.memory
    assert ours.trained.samples == theirs.trained.samples
    assert ours.trained.signature == theirs.trained.signature
    assert ours.metrics == theirs.metrics


def assert_close(ours: TrainedVectors, theirs: TrainedVectors) -> None:
    """Compare within the rounding of float32."""
    assert ours.numbers.keys() == theirs.numbers.keys()
    for name, vector in ours.numbers.items():
        np.testing.assert_allclose(vector, theirs.numbers[name], atol=1e-5, err_msg=name)
    assert ours.trained.samples == theirs.trained.samples
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name, value in ours.metrics.items():
        np.testing.assert_allclose(value, theirs.metrics[name], rtol=1e-5, err_msg=name)
    assert (ours.trained.signature is None) == (theirs.trained.signature is None)
    our_signatures, their_signatures = (np.array(each.trained.signature or ()) for each in (ours, theirs))
    np.testing.assert_allclose(our_signatures, their_signatures, atol=1e-5)


def long_visit(blobs: MemoryBlobs) -> Train:
    """Return a visit that runs until it is stopped."""
    work = visit("sgd", blobs)
    training = msgspec.structs.replace(work.visit.task.training, epochs=10**6)
    task = msgspec.structs.replace(work.visit.task, training=training)
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, task=task))


def assert_warms_and_refuses(engine: Engine) -> None:
    """Check that a device with samples warms up, and that one without samples or without a share fails with a data
    error.
    """
    blobs = MemoryBlobs()
    work = visit("sgd", blobs)
    assert engine.start("dev-0", "a", Warm(work.visit.kit, work.visit.task), blobs).result().event == WorkDone(
        "a", Warmed(18)
    )
    for device, word in {"none": "has no samples", "dev-9": "no share for a device 'dev-9'"}.items():
        event = engine.start(device, "b", work, blobs).result().event
        assert isinstance(event, WorkFailed)
        assert event.reason == "data"
        assert word in event.detail
