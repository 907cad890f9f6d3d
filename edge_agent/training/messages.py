"""The messages between the agent and its training worker: the work and its results."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from edge_agent.training.sandbox import SandboxReport
from sojourn.data.source import DataSettings
from sojourn.protocol.data_summary import DataSurvey
from sojourn.protocol.messages import Visit, map_refs
from sojourn.protocol.wire import Ref, Task, VisitReason


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """Load data and build sessions for a visit that will follow soon. The kit is in the blob folder."""

    kit: Ref
    task: Task


class LookAtData(msgspec.Struct, frozen=True, tag="look"):
    """Read the data and return a survey of it (`sojourn.protocol.data_summary`)."""


class Train(msgspec.Struct, frozen=True, tag="train"):
    """Train a visit whose blobs are all in the blob folder.

    memory: the vectors stored for the job's objective; remembered: the number of visits that contributed to them.
    """

    visit: Visit
    memory: dict[str, Ref]
    remembered: int = 0


_Work = TypeVar("_Work", Warm, Train, Warm | Train, Warm | Train | LookAtData)


def name_of_work(key: str, work: Warm | Train | LookAtData) -> str:
    """Return the name of a work item for the log: that of the visit, or the key of other work."""
    return str(work.visit.id) if isinstance(work, Train) else key


def without_inline(work: _Work) -> _Work:
    """Return the work without inline blobs: the worker reads them from a store, so its message stays small."""
    if isinstance(work, Train):
        return msgspec.structs.replace(work, visit=map_refs(work.visit, _bare))
    return msgspec.structs.replace(work, kit=_bare(work.kit)) if isinstance(work, Warm) else work


def _bare(ref: Ref) -> Ref:
    return msgspec.structs.replace(ref, inline=None) if ref.inline else ref


class Warmed(msgspec.Struct, frozen=True, tag="warmed"):
    """The worker is ready."""

    samples: int


class Trained(msgspec.Struct, frozen=True, tag="trained"):
    """A trained visit: its blobs are in the blob folder. `memory` is stored when the result is accepted."""

    vectors: dict[str, Ref]
    samples: int
    metrics: dict[str, float]
    signature: tuple[float, ...] | None
    memory: dict[str, Ref]
    note: str = ""
    """Problems of this device's data, without values, for the job's operator."""
    warnings: tuple[str, ...] = ()
    """The same problems in full, for the device's owner."""


class WorkerSetup(msgspec.Struct, frozen=True, tag="setup"):
    """The first frame to a worker: the blob folder, the data, and the limits on threads, cores and memory.

    readable: paths that it may read in addition to its data and the blobs.
    feature_disk: maximum megabytes of stored features; free_disk: megabytes that must stay free on the disk.
    """

    blobs: str
    data: DataSettings
    threads: int
    cpu_share: float = 1.0
    memory: int | None = None
    readable: tuple[str, ...] = ()
    feature_disk: int = 0
    free_disk: int | None = None


class WorkOrder(msgspec.Struct, frozen=True, tag="order"):
    """A work item for the worker, with its key."""

    key: str
    work: Warm | Train | LookAtData


class SetPace(msgspec.Struct, frozen=True, tag="pace"):
    """Sets the share of the time in which the worker works."""

    share: float


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """The worker's progress report."""

    key: str
    step: int
    steps: int


class Success(msgspec.Struct, frozen=True, tag="success"):
    """The worker's report that its work is done."""

    key: str
    outcome: Warmed | Trained | DataSurvey


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The worker's report that its work failed: the reason, and details for people."""

    key: str
    reason: VisitReason
    detail: str


Frame = WorkerSetup | WorkOrder | SetPace | SandboxReport | Advance | Success | Failure
FRAMES: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)
