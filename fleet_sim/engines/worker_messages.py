"""The messages between an engine and its workers in other processes, encoded as msgpack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.messages import Train, Trained, Warm, Warmed
from fleet_sim.engines.shared_memory import Layout, Place
from sojourn.node.machine import WorkDone, WorkFailed
from sojourn.protocol.wire import VisitReason

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Outcome


class PoolWorkerSetup(msgspec.Struct, frozen=True, tag="setup"):
    """The first message to a worker: the position of the data set in shared memory, and the names of its classes."""

    layouts: tuple[Layout, ...]
    classes: tuple[str, ...]


class PoolVisit(msgspec.Struct, frozen=True, array_like=True):
    """A visit for a worker of the pool.

    rows: the device's sample numbers, as int64. needs: the digests of all blobs of this visit. room: places for its
    results.
    """

    device: str
    key: str
    rows: bytes
    work: Warm | Train
    needs: tuple[bytes, ...]
    room: tuple[Place, ...]


class PoolRequest(msgspec.Struct, frozen=True, tag="request"):
    """Visits for a worker of the pool, and the places of the blobs they need (or the blobs)."""

    visits: tuple[PoolVisit, ...]
    blobs: dict[bytes, Place | bytes]


class PoolResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a visit: an outcome or a failure, and each blob or the number of its place."""

    outcome: Warmed | Trained | None
    failure: tuple[VisitReason, str] | None
    blobs: dict[bytes, int | bytes]


class PoolAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The results of all visits of a request, in order.

    together: how many of them ran together with others; training: seconds of processor time that they took.
    """

    results: list[PoolResult]
    together: int
    training: float


class VisitRequest(msgspec.Struct, frozen=True):
    """A visit for a worker on any machine. The blobs that it lacks are sent next to the request.

    rows: the device's sample numbers, as int64. needs: the digests of all blobs of this visit. forget: the digests of
    blobs that the worker must drop first.
    """

    device: str
    key: str
    rows: bytes
    work: Warm | Train
    needs: tuple[bytes, ...]
    forget: tuple[bytes, ...]


class VisitAnswer(msgspec.Struct, frozen=True):
    """The result of a visit: an outcome with its blobs, or a failure."""

    outcome: Warmed | Trained | None
    failure: tuple[VisitReason, str] | None
    blobs: dict[bytes, bytes]


def event_of(key: str, answer: VisitAnswer | PoolResult) -> WorkDone | WorkFailed:
    """Return the event of a visit with this reply."""
    return WorkFailed(key, *answer.failure) if answer.failure else WorkDone(key, answer.outcome)


def answer_of(outcome: Outcome) -> VisitAnswer:
    """Return the reply that carries an outcome to another process."""
    match outcome.event:
        case WorkDone(outcome=done):
            return VisitAnswer(done, None, dict(outcome.blobs))
        case WorkFailed(reason=reason, detail=detail):
            return VisitAnswer(None, (reason, detail), {})
