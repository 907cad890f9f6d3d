"""The messages between an engine and its workers in other processes, as msgpack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.work import Train, Trained, Warm, Warmed
from fleet_sim.engines.arena import Place
from fleet_sim.engines.shared import Layout
from sojourn.node.machine import Did, DidNot

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Outcome


class PoolWorkerSetup(msgspec.Struct, frozen=True):
    """The first message to a worker: where the data set lies in shared memory, and the names of its classes."""

    layouts: tuple[Layout, ...]
    classes: tuple[str, ...]


class PoolVisit(msgspec.Struct, frozen=True, array_like=True):
    """A visit for a worker of the pool.

    rows: which samples the device has, as int64. needs: the digests of all blobs of this visit. room: places for the
    blobs that it makes.
    """

    device: str
    key: str
    rows: bytes
    work: Warm | Train
    needs: tuple[bytes, ...]
    room: tuple[Place, ...]


class PoolRequest(msgspec.Struct, frozen=True, array_like=True):
    """Visits for a worker of the pool, and where the blobs lie that they need (or these themselves)."""

    visits: tuple[PoolVisit, ...]
    blobs: dict[bytes, Place | bytes]


class PoolResult(msgspec.Struct, frozen=True, array_like=True):
    """What came of a visit: an outcome, or why there is none; and in which of its places each blob is, or the blob."""

    outcome: Warmed | Trained | None
    reason: str
    detail: str
    blobs: dict[bytes, int | bytes]


class PoolAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The results of all visits of a request, in their order.

    together: how many of them ran as one with others; training: seconds of processor time that they took.
    """

    results: list[PoolResult]
    together: int
    training: float


class VisitRequest(msgspec.Struct, frozen=True):
    """A visit for a worker on any machine. Blobs that the worker has from earlier requests are not sent again.

    rows: which samples the device has, as int64. needs: the digests of all blobs of this visit. forget: the digests of
    blobs that the worker is to drop first.
    """

    device: str
    key: str
    rows: bytes
    work: Warm | Train
    blobs: dict[bytes, bytes]
    needs: tuple[bytes, ...]
    forget: tuple[bytes, ...]


class VisitAnswer(msgspec.Struct, frozen=True):
    """What came of a visit: an outcome with its blobs, or why there is none."""

    outcome: Warmed | Trained | None
    reason: str
    detail: str
    blobs: dict[bytes, bytes]


def event_of(key: str, answer: VisitAnswer | PoolResult) -> Did | DidNot:
    """The event of a visit that was answered so."""
    if answer.outcome is None:
        return DidNot(key, answer.reason, answer.detail)
    return Did(key, answer.outcome)


def answer_of(outcome: Outcome) -> VisitAnswer:
    """The answer that carries an outcome to another process."""
    match outcome.event:
        case Did(outcome=done):
            return VisitAnswer(done, "", "", dict(outcome.blobs))
        case DidNot(reason=reason, detail=detail):
            return VisitAnswer(None, reason, detail, {})
