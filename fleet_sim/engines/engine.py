"""What an engine is, what it is made of, and what comes of a visit. Engines with torch load it when they are made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from edge_agent.training.work import Train, Trained
from sojourn.data.samples import Content, Samples, fit
from sojourn.errors import DataError
from sojourn.node.machine import Did, DidNot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from edge_agent.training.work import Warm
    from fleet_sim.engines.spent import Spent
    from sojourn.protocol.spec import Kit
    from sojourn.protocol.wire import Ref
    from sojourn.store.blobs import BlobStore


@dataclass(frozen=True, eq=False)
class Shards:
    """The data set, once, and which of its samples each device has. `y` are places in `classes`."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    rows: Mapping[str, NDArray[np.int64]]

    def samples(self, device: str, kit: Kit) -> Samples:
        """What the device would read from its own file: labels by name, in the graph's shape, x as compact as it is."""
        rows = self.rows_of(device)
        share = f"{device}'s share of the data set"
        return fit(Content(share, self.x[rows], self.classes, self.y[rows]), kit)

    def rows_of(self, device: str) -> NDArray[np.int64]:
        """Which samples the device has."""
        rows = self.rows.get(device)
        if rows is None:
            raise DataError(f"the data set has no share for a device {device!r}")
        return rows


@dataclass(frozen=True)
class Network:
    """The torch module that a kit was compiled from, and its normalisation: a kit itself holds only graphs."""

    module: Any
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    batchnorm: Literal["merge", "frozen"] = "merge"

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
