"""The messages between an engine and its workers in other processes, as msgpack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.work import Train, Trained, Warm, Warmed
from fleet_sim.engines.shared import Layout
from sojourn.node.machine import Did, DidNot

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Outcome


class PoolWorkerSetup(msgspec.Struct, frozen=True):
    """The first message to a worker: where the data set lies in shared memory, and the names of its classes."""

    layouts: tuple[Layout, ...]
    classes: tuple[str, ...]


class VisitRequest(msgspec.Struct, frozen=True):
    """A visit to train. Blobs that the worker has from earlier requests are not sent again.

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


def event_of(key: str, answer: VisitAnswer) -> Did | DidNot:
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
