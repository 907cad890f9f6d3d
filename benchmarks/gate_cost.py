"""The cost of the gate for an edge server at each hop: a check with 100 exemplars, and without.

The model moves from hop to hop, so a check can reuse results of the previous one. Times are CPU times on one core,
independent of other load.

Run from the root: OMP_NUM_THREADS=1 python -m benchmarks.gate_cost [--hops 100]
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.site import CLASSES, CompiledModel
from hierarchy.edge.gate import Check, Passed, perform
from sojourn.model import vectors
from sojourn.model.exemplar_view import ExemplarViews
from sojourn.model.exemplars import Exemplars
from sojourn.parts import Gate, Sgd, TourBounds, Training
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.wire import Ref, Task
from sojourn.randomness import generator
from sojourn.store.blobs import ref_of
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXEMPLARS, STEP = 100, 1e-3
MODELS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "mlp of digits": ("mlp", (1, 8, 8), {}),
    "small cnn": ("cnn", (3, 32, 32), {"channels": [16, 32, 32], "hidden": 64}),
    "resnet8": ("resnet8", (3, 32, 32), {}),
}


def seconds(model: CompiledModel, shape: tuple[int, ...], hops: int, *, look: bool) -> list[float]:
    """Return the time of each check of a tour; the first one prepares graphs and exemplars."""
    blobs, views, draw = MemoryBlobs(), ExemplarViews(), generator(1, "gate")
    shown = Exemplars.of(
        draw.random((EXEMPLARS, *shape), np.float32), np.arange(EXEMPLARS, dtype=np.int64) % len(CLASSES)
    )
    kit, exemplars = (_keep(blobs, data) for data in (model.packed, pack_blob(shown)))
    gate, bounds = Gate(loss_factor=1e9), TourBounds(against_factor=1e9, least_cosine=-1.0)
    task = Task("train", Training(), Sgd(), "float32", 1)
    vector: NDArray[np.float32] = model.initial
    checkpoint, took = {"model": vectors.save(blobs, vector, "float32", model.kit.model)}, []
    for _ in range(hops):
        vector = vector + STEP * draw.standard_normal(len(vector), np.float32)
        result = {"model": vectors.save(blobs, vector, "float32", model.kit.model)}
        work = Check(kit, result, checkpoint, exemplars if look else None, gate, (1.0,), task, 400, 0, bounds)
        began = time.thread_time()
        done = perform(work, blobs, views)
        took.append(time.thread_time() - began)
        assert isinstance(done, Passed)
        checkpoint = done.vectors
    return took


def _keep(blobs: MemoryBlobs, data: bytes) -> Ref:
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    return ref


def main() -> None:
    """Measure the models one after another."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--hops", type=int, default=100)
    hops = given.parse_args().hops
    print("| model | numbers | without exemplars | with 100 exemplars | more | first check |")
    print("|---|---|---|---|---|---|")
    for name, (kind, shape, options) in MODELS.items():
        model = CompiledModel(kind, shape, **options)
        plain, looking = (seconds(model, shape, hops, look=look) for look in (False, True))
        each = [1000 * median(took[1:]) for took in (plain, looking)]
        print(
            f"| {name} | {len(model.initial):,} | {each[0]:.2f} ms | {each[1]:.2f} ms | {each[1] - each[0]:.2f} ms "
            f"| {1000 * looking[0]:.0f} ms |"
        )


if __name__ == "__main__":
    main()
