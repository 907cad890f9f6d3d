"""What an engine is, what it is made of, and what comes of a visit. Engines with torch load it when they are made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from edge_agent.training.work import Train, Trained
from sojourn.data.samples import Content, Samples, fit, numeric, shaped
from sojourn.errors import DataError
from sojourn.node.machine import Did, DidNot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from edge_agent.training.work import Warm
    from fleet_sim.engines.spent import Spent
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.task import TaskSpec
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore


@dataclass(frozen=True, eq=False)
class Shards:
    """The data set, once, and which of its samples each device has.

    `y` are places in `classes`; of a task of another kind, targets in its shape.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    rows: Mapping[str, NDArray[np.int64]]

    def samples(self, device: str, kit: Kit) -> Samples:
        """What the device would read from its own file: labels by name, in the graph's shape, x as compact as it is."""
        rows = self.rows_of(device)
        share = f"{device}'s share of the data set"
        if not kit.task or kit.task.kind == "classification":
            return fit(Content(share, self.x[rows], self.classes, self.y[rows]), kit)
        return _targeted(self.x[rows], self.y[rows], kit, kit.task, share)

    def rows_of(self, device: str) -> NDArray[np.int64]:
        """Which samples the device has."""
        rows = self.rows.get(device)
        if rows is None:
            raise DataError(f"the data set has no share for a device {device!r}")
        return rows


def _targeted(x: NDArray[Any], y: NDArray[Any], kit: Kit, task: TaskSpec, share: str) -> Samples:
    """Samples with targets of a task's shape; whoever made the data set has cut its windows already."""
    if not len(x):
        raise DataError(f"{share} holds no samples")
    rows = shaped(numeric(x, kit.input, share), kit.input.shape, share)
    if task.target is None:
        normal = y.reshape(len(y)) == 0
        rows, y = rows[normal], np.zeros(np.count_nonzero(normal), np.int64)
    else:
        y = np.ascontiguousarray(y, task.target.dtype).reshape(len(x), *task.target.shape)
        normal = np.ones(len(x), np.bool_)
    if not len(rows):
        raise DataError(f"{share} holds no sample that can be used")
    return Samples(rows, y, (), normal)


@dataclass(frozen=True)
class Network:
    """The torch module that a kit was compiled from, its normalisation and loss: a kit itself holds only graphs."""

    module: Any
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    batchnorm: Literal["merge", "frozen"] = "merge"
    learning: Any = None
    """What is learnt, where it is not simply one class of several (`coordinator.compiling.learning`)."""

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(tensor.numel() for tensor in self.module.parameters() if tensor.requires_grad)


@dataclass(frozen=True)
class Outcome:
    """How a visit went, and the blobs it made, by digest: they belong in the device's store."""

    event: Did | DidNot
    blobs: Mapping[bytes, bytes] = field(default_factory=dict)


class Engine(Protocol):
    """Trains visits of any device."""

    spent: Spent
    """What it has done so far."""

    def start(self, device: str, key: str, work: Train | Warm, blobs: BlobStore) -> Future[Outcome]:
        """Begin a visit whose blobs are in the device's store; whoever wants its result waits for it."""

    def close(self) -> None:
        """End all that was started."""


def kit_of(work: Train | Warm) -> Ref:
    """The reference of the kit that a visit or a warm-up uses."""
    return work.visit.kit if isinstance(work, Train) else work.kit


def brought(work: Train | Warm, blobs: BlobStore) -> dict[bytes, bytes]:
    """The blobs that the work needs besides its kit; what is gone is left out, and training then fails by name."""
    found: dict[bytes, bytes] = {}
    if isinstance(work, Train):
        for ref in (*work.visit.vectors.values(), *work.memory.values()):
            with suppress(KeyError):
                found[ref.digest] = blobs.read(ref.digest)
    return found


def outcome_of(event: Did | DidNot, blobs: BlobStore) -> Outcome:
    """The event, with the blobs that it refers to."""
    made = event.outcome if isinstance(event, Did) else None
    refs = [*made.vectors.values(), *made.memory.values()] if isinstance(made, Trained) else []
    return Outcome(event, {ref.digest: blobs.read(ref.digest) for ref in refs})
