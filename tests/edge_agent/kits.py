"""A small compiled model, its kit, and visits to train it with."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from edge_agent.work import Train
from sojourn.blobs import BlobStore, ref_of
from sojourn.envelope import pack_blob
from sojourn.messages import Visit
from sojourn.parts import Sgd, Training
from sojourn.spec import InputSpec
from sojourn.vectors import save
from sojourn.wire import Task, VisitId

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = ("cat", "dog", "owl")
MEAN, STD = 8.0, 4.0


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, len(CLASSES))
    )


@cache
def compiled() -> Compiled:
    return compile_kit(network(), InputSpec((1, 8, 8)), CLASSES, mean=[MEAN], std=[STD], seed=3)


def write_data(path: Path, samples: int = 50, classes: tuple[str, ...] = CLASSES) -> tuple[Any, Any]:
    """Random pixels with names as labels, in an NPZ file."""
    draw = np.random.default_rng(5)
    x = draw.integers(0, 17, (samples, 8, 8), dtype=np.uint8)
    y = draw.integers(0, len(classes), samples)
    np.savez(path, x=x, y=np.array(classes)[y])
    return x, y


def visit_for(
    blobs: BlobStore, *, kind: Any = "train", encoding: Any = "float32", seed: int = 11, **training: Any
) -> Train:
    """A visit whose kit and model are in the store."""
    kit, initial = compiled().kit, compiled().initial
    data = pack_blob(kit)
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    task = Task(kind, Training(**({"batch": 8, "lr": 0.1} | training)), Sgd(), encoding, 1)
    model = save(blobs, initial, "float32", kit.model)
    return Train(Visit(VisitId("job", 0, 0, 0, (0, 0)), ref, {"model": model}, task, seed, 60.0), {})
