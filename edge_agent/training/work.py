"""What the agent asks its training worker to do, and what comes back."""

from __future__ import annotations

import msgspec

from sojourn.protocol.messages import Visit
from sojourn.protocol.wire import Ref, Task


class Warm(msgspec.Struct, frozen=True, tag="warm"):
    """A visit is near: load data, build sessions. The kit is in the blob folder."""

    kit: Ref
    task: Task


class LookAtData(msgspec.Struct, frozen=True, tag="look"):
    """Read the data and tell what it was taken for (`sojourn.data.data_survey`)."""


class Train(msgspec.Struct, frozen=True, tag="train"):
    """Do a visit whose blobs are all in the blob folder.

    memory: what the device keeps for the job's objective; remembered: how many visits have gone into it.
    """

    visit: Visit
    memory: dict[str, Ref]
    remembered: int = 0


def name_of_work(key: str, work: Warm | Train | LookAtData) -> str:
    """A piece of work for the log: of a visit its name for people, of all else its key."""
    return str(work.visit.id) if isinstance(work, Train) else key


class Warmed(msgspec.Struct, frozen=True, tag="warmed"):
    """The worker is ready."""

    samples: int


class Trained(msgspec.Struct, frozen=True, tag="trained"):
    """A finished visit: its blobs are in the blob folder. `memory` is kept if the result is accepted."""

    vectors: dict[str, Ref]
    samples: int
    metrics: dict[str, float]
    signature: tuple[float, ...] | None
    memory: dict[str, Ref]
    note: str = ""
    """What the job's operator should know of this device's data, if something is odd about it."""
    warnings: tuple[str, ...] = ()
    """The same in full, for the device's owner."""
