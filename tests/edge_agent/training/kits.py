"""A small compiled model, its kit, and visits to train it with."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.rounds.preparing import KitCache
from edge_agent.training.messages import Train, Trained
from edge_agent.training.trainer import Trainer
from sojourn.data.source import DataSettings
from sojourn.model.vectors import load, save
from sojourn.parts import Sgd, Training
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.wire import Ref, Task, VisitId
from sojourn.store.blobs import BlobStore, ref_of
from sojourn.store.memory_blobs import MemoryBlobs
from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

CLASSES = ("cat", "dog", "owl")
MEAN, STD = 8.0, 4.0


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, len(CLASSES))
        )


def network_with_state() -> nn.Sequential:
    """A network with BatchNorm over maps and over rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 6),
            nn.BatchNorm1d(6, momentum=0.3),
            nn.Linear(6, len(CLASSES)),
        )


def network_with_frozen_trunk() -> nn.Sequential:
    """The same with one more layer; only the last two are trained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        trunk = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten()
        ).requires_grad_(requires_grad=False)
        return nn.Sequential(trunk, nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, len(CLASSES)))


@cache
def compiled() -> Compiled:
    """Compiled once for all processes of a run."""
    return _compiled_once("tests-edge-agent-training", network)


@cache
def compiled_with_state() -> Compiled:
    """The same for a model with state."""
    return _compiled_once("tests-edge-agent-state", network_with_state)


@cache
def cut() -> Compiled:
    """The network with a frozen trunk, whose kit is cut."""
    return _compiled_once("tests-edge-agent-cut", network_with_frozen_trunk)


@cache
def uncut() -> Compiled:
    """The same network in one piece."""
    return _compiled_once("tests-edge-agent-uncut", network_with_frozen_trunk, whole=True)


def _compiled_once(name: str, make: Callable[[], nn.Module], *, whole: bool = False) -> Compiled:
    found = KitCache().find(name)
    if found:
        return Compiled(*found)
    made = compile_kit(make(), InputSpec((1, 8, 8)), CLASSES, mean=[MEAN], std=[STD], seed=3, whole=whole)
    KitCache().keep(name, made.kit, made.initial)
    return made


def torch_step(model: nn.Module, loss: torch.Tensor, rate: float) -> None:
    """One step of plain SGD."""
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(rate * there(parameter.grad))


def write_data(path: Path, samples: int = 50, classes: tuple[str, ...] = CLASSES) -> tuple[Any, Any]:
    """Write random pixels with class names as labels to an NPZ file."""
    draw = np.random.default_rng(5)
    x = draw.integers(0, 17, (samples, 8, 8), dtype=np.uint8)
    y = draw.integers(0, len(classes), samples)
    np.savez(path, x=x, y=np.array(classes)[y])
    return x, y


def visit_for(
    blobs: BlobStore,
    *,
    kind: Any = "train",
    encoding: Any = "float32",
    seed: int = 11,
    objective: Any = None,
    estimator: Any = None,
    earlier: int = 0,
    job: str = "job",
    model: Compiled | None = None,
    **training: Any,
) -> Train:
    """Return a visit whose kit and model are in the store; `model` replaces the default one."""
    used = model or compiled()
    kit, initial = used.kit, used.initial
    data = pack_blob(kit)
    ref = ref_of(data)
    blobs.put(data, ref.digest)
    task = Task(kind, Training(**({"batch": 8, "lr": 0.1} | training)), objective or Sgd(), encoding, 1, estimator)
    start = save(blobs, initial, "float32", kit.model)
    return Train(Visit(VisitId(job, 0, 0, 0, (0, 0)), ref, {"model": start}, task, seed, 60.0, earlier), {})


def with_vectors(work: Train, blobs: BlobStore, **named: NDArray[np.float32]) -> Train:
    """The visit with more vectors."""
    more = {name: save(blobs, vector, "float32", compiled().kit.model) for name, vector in named.items()}
    return msgspec.structs.replace(work, visit=msgspec.structs.replace(work.visit, vectors=work.visit.vectors | more))


class Bench:
    """A trainer with its blobs and data."""

    def __init__(self, folder: Path, samples: int = 50, classes: tuple[str, ...] = CLASSES) -> None:
        path = folder / "data.npz"
        self.x, self.y = write_data(path, samples, classes)
        self.blobs = MemoryBlobs()
        self.trainer = Trainer(self.blobs, DataSettings(path=str(path)))

    def perform(self, work: Train) -> Trained:
        outcome = self.trainer.perform(work)
        assert isinstance(outcome, Trained)
        return outcome

    def train(self, **task: Any) -> Trained:
        return self.perform(visit_for(self.blobs, **task))

    def load(self, ref: Ref) -> NDArray[np.float32]:
        return load(self.blobs, ref, compiled().kit.model)

    def vector(self, **task: Any) -> NDArray[np.float32]:
        return self.load(self.train(**task).vectors["model"])
