"""The interface of a training engine: its data, the outcome of a visit, and counters of its work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_agent.training.messages import Train, Trained, Warm
from sojourn.data.samples import Content, Samples, fit, numeric, shaped
from sojourn.errors import DataError
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.protocol.spec import Kit
from sojourn.protocol.task import TaskSpec
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore


@dataclass
class Spent:
    """Counters of an engine; worker threads update them, too.

    visits: trained or failed visits. together: visits whose steps ran together with others. training: seconds of the
    trainers' processor time. waiting: seconds that the simulation waited for results.
    """

    visits: int = 0
    together: int = 0
    training: float = 0.0
    waiting: float = 0.0
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, *, visits: int = 0, together: int = 0, training: float = 0.0, waiting: float = 0.0) -> None:
        """Add to the counters."""
        with self._lock:
            self.visits += visits
            self.together += together
            self.training += training
            self.waiting += waiting


@dataclass(frozen=True, eq=False)
class Shards:
    """The data set, and the sample numbers of each device.

    `y` are indices into `classes`; for other kinds of tasks, targets in the task's shape.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    rows: Mapping[str, NDArray[np.int64]]

    def samples(self, device: str, kit: Kit) -> Samples:
        """Return the samples a device would read from its file: labels by name, x compact and in the graph's shape."""
        rows = self.rows_of(device)
        share = f"{device}'s share of the data set"
        if not kit.task or kit.task.kind == "classification":
            return fit(Content(share, self.x[rows], self.classes, self.y[rows]), kit)
        return _targeted(self.x[rows], self.y[rows], kit, kit.task, share)

    def rows_of(self, device: str) -> NDArray[np.int64]:
        """Return the sample numbers of a device."""
        rows = self.rows.get(device)
        if rows is None:
            raise DataError(f"the data set has no share for a device {device!r}")
        return rows


def _targeted(x: NDArray[Any], y: NDArray[Any], kit: Kit, task: TaskSpec, share: str) -> Samples:
    """Return samples with targets of a task's shape; the data set's windows are already cut."""
    if not len(x):
        raise DataError(f"{share} contains no samples")
    rows = shaped(numeric(x, kit.input, share), kit.input.shape, share)
    if task.target is None:
        normal = y.reshape(len(y)) == 0
        rows, y = rows[normal], np.zeros(np.count_nonzero(normal), np.int64)
    else:
        y = np.ascontiguousarray(y, task.target.dtype).reshape(len(x), *task.target.shape)
        normal = np.ones(len(x), np.bool_)
    if not len(rows):
        raise DataError(f"{share} contains no usable samples")
    return Samples(rows, y, (), normal)


@dataclass(frozen=True)
class Network:
    """The torch module that a kit was compiled from, with its normalisation and loss; a kit holds only graphs."""

    module: Any
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    batchnorm: Literal["merge", "frozen"] = "merge"
    learning: Any = None
    """The learning task, if it is not a plain classification (`coordinator.compiling.losses`)."""

    @property
    def size(self) -> int:
        """The number of trainable parameters."""
        return sum(tensor.numel() for tensor in self.module.parameters() if tensor.requires_grad)


@dataclass(frozen=True)
class Outcome:
    """The result of a visit, and its new blobs by digest, which belong in the device's store."""

    event: WorkDone | WorkFailed
    blobs: Mapping[bytes, bytes] = field(default_factory=dict)


class Engine(Protocol):
    """Trains visits of any device."""

    spent: Spent
    """Counters of its work so far."""

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Start a visit whose blobs are in the device's store; the caller awaits its result."""

    def close(self) -> None:
        """Stop all work."""


def kit_of(work: Train | Warm) -> Ref:
    """Return the reference of the kit that a visit or a warm-up uses."""
    return work.visit.kit if isinstance(work, Train) else work.kit


def brought(work: Train | Warm, blobs: BlobStore) -> dict[bytes, bytes]:
    """Return the blobs the work needs in addition to its kit; training reports the missing ones."""
    found: dict[bytes, bytes] = {}
    if isinstance(work, Train):
        for ref in (*work.visit.vectors.values(), *work.memory.values()):
            with suppress(KeyError):
                found[ref.digest] = blobs.read(ref.digest)
    return found


def outcome_of(event: WorkDone | WorkFailed, blobs: BlobStore) -> Outcome:
    """Return the event with the blobs that it references."""
    made = event.outcome if isinstance(event, WorkDone) else None
    refs = [*made.vectors.values(), *made.memory.values()] if isinstance(made, Trained) else []
    return Outcome(event, {ref.digest: blobs.read(ref.digest) for ref in refs})
