"""A visit's training: mini-batch SGD on the device's own data, with a kit's graphs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from edge_agent import objectives
from edge_agent.data import load_data
from edge_agent.work import Train, Trained, Warm, Warmed
from sojourn import vectors
from sojourn.envelope import unpack_blob
from sojourn.errors import DataError, DiskFull, SojournError
from sojourn.exemplars import Exemplars, signature
from sojourn.graphs import Graphs, check_probe
from sojourn.machine import Did, DidNot, Doing
from sojourn.randomness import batches, noise
from sojourn.spec import Kit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edge_agent.data import DataSettings
    from edge_agent.data_samples import Samples
    from sojourn.blobs import BlobStore
    from sojourn.messages import Visit
    from sojourn.parts import Training
    from sojourn.spec import ModelSpec
    from sojourn.wire import Ref, Task

    Progress = Callable[[int, int], None]

log = logging.getLogger(__name__)
_ALLOCATION_FAILED = ("failed to allocate", "bad_alloc", "bad allocation", "out of memory")


class RuntimeDiffers(SojournError):
    """This machine's onnxruntime does not compute what the kit's probe says."""


class Unsupported(SojournError):
    """The task asks for something that this agent cannot do."""


REASONS: tuple[tuple[type[Exception], str], ...] = (
    (DataError, "data"),
    (RuntimeDiffers, "runtime"),
    (Unsupported, "unsupported"),
    (DiskFull, "disk"),
    (MemoryError, "memory"),
)
"""The word with which a visit is declined for each error; any other is `failed`."""


def reason_of(error: Exception) -> str:
    """The word for an error."""
    if word := next((word for kind, word in REASONS if isinstance(error, kind)), None):
        return word
    # onnxruntime has no error of its own for this.
    return "memory" if any(words in str(error).lower() for words in _ALLOCATION_FAILED) else "failed"


@dataclass(frozen=True)
class Prepared:
    """What a visit needs besides its vectors, ready to use."""

    kit: Kit
    graphs: Graphs
    samples: Samples


class Trainer:
    """Trains visits one at a time, and keeps what the last one needed for the next."""

    def __init__(self, blobs: BlobStore, data: DataSettings, threads: int = 1) -> None:
        """Read and write `blobs`; use `threads` threads unless a task says how many."""
        self._blobs = blobs
        self._data = data
        self._threads = threads
        self._kept: tuple[tuple[bytes, int], Prepared] | None = None

    def perform(self, work: Warm | Train, progress: Progress = lambda _step, _steps: None) -> Warmed | Trained:
        """Do what the agent asks."""
        if isinstance(work, Warm):
            return Warmed(len(self._prepare(work.kit, work.task).samples))
        return train_visit(work, self._blobs, self._prepare(work.visit.kit, work.visit.task), progress)

    def _prepare(self, ref: Ref, task: Task) -> Prepared:
        key = ref.digest, task.threads or self._threads
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # not two data sets in memory at a time
            self._kept = key, prepare(unpack_blob(self._blobs.read(ref.digest), Kit), self._data, key[1])
        return self._kept[1]


class InlineTraining:
    """Workers that train at once, in the caller: for simulation and for tests."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def start(self, key: str, work: Warm | Train, report: Callable[[Did | Doing | DidNot], None]) -> None:
        """Train and report."""
        report(attempt(key, work, self._trainer, lambda step, steps: report(Doing(key, step, steps))))

    def stop(self, key: str) -> None:
        """There is never anything under way."""

    def close(self) -> None:
        """There is nothing to end."""


def attempt(key: str, work: Warm | Train, trainer: Trainer, progress: Progress) -> Did | DidNot:
    """Do the work; a failure is a report with its word, never a crash."""
    try:
        return Did(key, trainer.perform(work, progress))
    except Exception as error:
        if not isinstance(error, SojournError):
            log.exception("%s failed", key)
        return DidNot(key, reason_of(error), str(error) or type(error).__name__)


def prepare(kit: Kit, data: DataSettings, threads: int) -> Prepared:
    """Load the data, build the graphs and compare them with the kit's probe."""
    samples = load_data(data, kit)
    for words in samples.skipped:
        log.warning("left out: %s", words)
    graphs = Graphs(kit, threads)
    if objection := check_probe(kit, graphs):
        raise RuntimeDiffers(objection)
    return Prepared(kit, graphs, samples)


def train_visit(work: Train, blobs: BlobStore, prepared: Prepared, progress: Progress) -> Trained:
    """Train the model that the visit hands over; the results are in `blobs` when this returns."""
    visit, spec = work.visit, prepared.kit.model
    start = _model(visit, blobs, prepared.kit)
    others = {name: ref for name, ref in visit.vectors.items() if name != "model" and ref.encoding != "raw"}
    received = {name: vectors.load(blobs, ref, spec) for name, ref in others.items()}
    memory = {name: vectors.load(blobs, ref, spec) for name, ref in work.memory.items()}
    objective = objectives.begin(visit.task.objective, start, received, memory)
    if objective is None:
        raise Unsupported(f"the objective {type(visit.task.objective).__name__} is not known here")
    began = perf_counter()
    end, losses = descend(start, objective, prepared, visit.task.training, visit.seed, progress)
    left = objective.end(end, len(losses.steps), visit.task.training.lr)
    metrics = losses.metrics() | {"seconds": perf_counter() - began}
    mark = _signature(visit, blobs, prepared, end)
    sent = {name: vectors.save(blobs, vector, "float32", spec) for name, vector in left.vectors.items()}
    if mark is None:
        sent["model"] = _save_model(blobs, start, end, visit.task, spec)
    keeps = {name: vectors.save(blobs, vector, "float32", spec) for name, vector in left.memory.items()}
    return Trained(sent, len(prepared.samples), metrics, mark, keeps)


@dataclass
class Losses:
    """The mean loss of each step, with its epoch and how many samples it saw."""

    steps: list[tuple[int, int, float]]

    def metrics(self) -> dict[str, float]:
        """The mean loss over the first and over the last epoch, as the model met the samples; NaN stays NaN."""
        last = self.steps[-1][0]
        return {"loss_first": self._mean(0), "loss": self._mean(last), "steps": float(len(self.steps))}

    def _mean(self, epoch: int) -> float:
        seen = [(size, loss) for at, size, loss in self.steps if at == epoch]
        return sum(size * loss for size, loss in seen) / sum(size for size, _ in seen)


def descend(
    start: NDArray[np.float32],
    objective: objectives.Objective,
    prepared: Prepared,
    training: Training,
    seed: int,
    progress: Progress,
) -> tuple[NDArray[np.float32], Losses]:
    """SGD from `start` in float32: v = momentum v + (direction + decay w); w -= lr v, as torch does it."""
    kit, samples = prepared.kit, prepared.samples
    w, velocity = start.copy(), np.zeros_like(start) if training.momentum else None
    per_epoch = -(-len(samples) // training.batch)
    losses = Losses([])
    progress(0, per_epoch * training.epochs)
    for step, index in enumerate(batches(seed, len(samples), training.batch, training.epochs)):
        x, y = samples.batch(index, kit.input.dtype)
        drawn = noise(seed, step, len(index), kit.noise)
        slope = partial(prepared.graphs.loss_and_gradient, x=x, y=y, noise=drawn)
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that diverges shows in the metrics
            loss, direction = objective.direction(w, slope)
            _move(w, velocity, direction, training)
        losses.steps.append((step // per_epoch, len(index), float(loss)))
        progress(step + 1, per_epoch * training.epochs)
    return w, losses


def _move(
    w: NDArray[np.float32],
    velocity: NDArray[np.float32] | None,
    direction: NDArray[np.float32],
    training: Training,
) -> None:
    if training.weight_decay:
        direction += training.weight_decay * w
    if velocity is not None:
        velocity *= training.momentum
        velocity += direction
        direction[:] = velocity
    direction *= training.lr
    w -= direction


def _model(visit: Visit, blobs: BlobStore, kit: Kit) -> NDArray[np.float32]:
    ref = visit.vectors.get("model")
    if ref is None or ref.delta:
        raise Unsupported("a visit must hand over a whole model")
    return vectors.load(blobs, ref, kit.model)


def _signature(
    visit: Visit, blobs: BlobStore, prepared: Prepared, vector: NDArray[np.float32]
) -> tuple[float, ...] | None:
    ref = visit.vectors.get("exemplars")
    if visit.task.kind != "estimate" or ref is None:
        return None
    exemplars = unpack_blob(blobs.read(ref.digest), Exemplars)
    return signature(prepared.graphs, vector, exemplars, len(prepared.kit.classes))


def _save_model(
    blobs: BlobStore, start: NDArray[np.float32], end: NDArray[np.float32], task: Task, spec: ModelSpec
) -> Ref:
    if task.encoding == "float32":
        return vectors.save(blobs, end, "float32", spec)
    # Differences are small, so a coarse encoding costs them little.
    return vectors.save(blobs, end - start, task.encoding, spec, delta=True)
