"""What goes between the pool and its workers, as msgpack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from edge_agent.training.work import Train, Trained, Warm, Warmed
from fleet_sim.engines.shared import Layout
from sojourn.node.machine import Did, DidNot

if TYPE_CHECKING:
    from fleet_sim.engines.engine import Outcome


class Setup(msgspec.Struct, frozen=True):
    """The first thing that a worker is sent: where the data set lies."""

    layouts: tuple[Layout, ...]
    classes: tuple[str, ...]


class Order(msgspec.Struct, frozen=True):
    """A visit. Blobs that the worker has from earlier orders are not sent again; `forget` names those to let go."""

    device: str
    key: str
    rows: bytes
    work: Warm | Train
    blobs: dict[bytes, bytes]
    needs: tuple[bytes, ...]
    forget: tuple[bytes, ...]


class Answer(msgspec.Struct, frozen=True):
    """What came of it: an outcome, or the word of a failure."""

    outcome: Warmed | Trained | None
    reason: str
    detail: str
    blobs: dict[bytes, bytes]


def event_of(key: str, answer: Answer) -> Did | DidNot:
    """The event that an answer tells of."""
    if answer.outcome is None:
        return DidNot(key, answer.reason, answer.detail)
    return Did(key, answer.outcome)


def answer_of(outcome: Outcome) -> Answer:
    """The answer that tells of an outcome."""
    match outcome.event:
        case Did(outcome=done):
            return Answer(done, "", "", dict(outcome.blobs))
        case DidNot(reason=reason, detail=detail):
            return Answer(None, reason, detail, {})
