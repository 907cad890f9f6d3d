"""Roles are state machines without I/O: events go in, effects come out.

A machine opens no socket, reads no clock, starts no thread and accesses no file. `sojourn.node.node` performs its
effects in the order given: a record is in the journal before any later effect leaves.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Literal, Protocol

import msgspec

from sojourn.logs import NO_SUBJECT, About
from sojourn.protocol.limits import Digest
from sojourn.protocol.messages import Presence
from sojourn.protocol.registry import Message
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Offer, Ref, VisitReason


class Received(msgspec.Struct, frozen=True):
    """A valid message arrived."""

    sender: Address
    epoch: Epoch
    message: Message


class Present(msgspec.Struct, frozen=True):
    """The retained presence of a node arrived."""

    node: Address
    epoch: Epoch
    state: Presence
    clash: bool = False
    """Whether two running nodes use this name."""


class NodeRemoved(msgspec.Struct, frozen=True):
    """A node was removed from the fleet: the broker's retained presence of it was cleared."""

    node: Address


class ForeignMessage(msgspec.Struct, frozen=True):
    """A program that is not a node wrote to an extra topic of this node. The content is not checked yet."""

    topic: str
    payload: bytes


class Pulled(msgspec.Struct, frozen=True):
    """A requested blob is in the store."""

    digest: Digest


class PullFailed(msgspec.Struct, frozen=True):
    """A blob cannot be fetched: its holder no longer has it, or this disk is full."""

    digest: Digest
    reason: Literal["gone", "disk"]


class WorkDone(msgspec.Struct, frozen=True):
    """A piece of work succeeded."""

    key: str
    outcome: Any


class WorkProgress(msgspec.Struct, frozen=True):
    """A piece of work reports its progress: in steps, or as text for a person."""

    key: str
    step: int
    steps: int
    text: str = ""


class WorkFailed(msgspec.Struct, frozen=True):
    """A piece of work failed; `detail` is for users.

    reason: `failed` if no more specific reason is known. A full disk is always `disk`.
    """

    key: str
    reason: VisitReason
    detail: str


class LocalEvent(msgspec.Struct, frozen=True):
    """A program on this machine reported something that the role understands."""

    what: Any


class LinkUp(msgspec.Struct, frozen=True):
    """A link is connected, for the first time or again: requests sent in the meantime were lost."""


class TimerFired(msgspec.Struct, frozen=True):
    """The time at which the machine asked to be woken has come."""


WorkEvent = WorkDone | WorkProgress | WorkFailed
Event = (
    Received
    | Present
    | NodeRemoved
    | ForeignMessage
    | Pulled
    | PullFailed
    | WorkEvent
    | LocalEvent
    | LinkUp
    | TimerFired
)


class Send(msgspec.Struct, frozen=True):
    """Send a message, once. Small blobs are inlined; the receiver may fetch the others."""

    to: Address
    message: Message


class Append(msgspec.Struct, frozen=True):
    """Write a record to the journal; with `sync`, the record and these blobs survive a power cut."""

    record: Any
    sync: bool = False
    blobs: tuple[Digest, ...] = ()


class StoreBlob(msgspec.Struct, frozen=True):
    """Store a small blob that the machine made itself."""

    digest: Digest
    data: bytes


class Pull(msgspec.Struct, frozen=True):
    """Fetch a blob from a node; answered by Pulled (at once if it is in the store) or PullFailed."""

    ref: Ref
    source: Address


class StartWork(msgspec.Struct, frozen=True):
    """Start work outside of the machine; answered by WorkDone or WorkFailed."""

    key: str
    work: Any
    keeps: bool = True
    """Whether it may leave blobs that only its outcome names: until then no blob is swept."""


class CancelWork(msgspec.Struct, frozen=True):
    """Cancel work; it sends no further event."""

    key: str


class Log(msgspec.Struct, frozen=True):
    """Log a sentence for users, with its subject for programs that read the log.

    level: `step` marks the steps of one visit, which are shown only with --verbose.
    """

    text: str
    level: Literal["debug", "step", "info", "warning", "error"] = "info"
    about: About = NO_SUBJECT


class PublishBirth(msgspec.Struct, frozen=True):
    """Publish this node's birth again: its offer has changed."""


class Publish(msgspec.Struct, frozen=True):
    """Publish a retained message for other programs, at the broker of the nodes of a role.

    An empty payload clears it.
    """

    role: Role
    topic: str
    payload: bytes


Effect = Send | Append | StoreBlob | Pull | StartWork | CancelWork | Log | PublishBirth | Publish


def earliest(*times: float | None) -> float | None:
    """The earliest of these times; None if all are None."""
    first = None
    for when in times:
        if when is not None and (first is None or when < first):
            first = when
    return first


class Machine(Protocol):
    """A role. Durable state changes only in `apply`, so that a restart is a replay."""

    address: Address

    @property
    def offer(self) -> Offer | None:
        """The data that this node publishes about itself in its birth."""

    @property
    def watches(self) -> tuple[Role, ...]:
        """The roles whose presence this machine subscribes to."""

    def role_of(self, sender: str) -> Role | None:
        """The role in which a node of this name may write to this one; None for an unknown name."""

    @property
    def record_form(self) -> Any:
        """The union of this machine's records, for reading them back."""

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""

    def snapshot(self) -> bytes:
        """Return the durable state as bytes, for `restore`."""

    def apply(self, record: Any) -> None:
        """Change the durable state by one record."""

    @property
    def remedy(self) -> str:
        """What may be missing after records were lost, and what the operator can do about it."""

    def validation_error(self, record: Any) -> str | None:
        """Return why a record does not follow the present state; called only if an earlier record may be missing."""

    def reserve_newer_attempts(self, boots: int) -> None:
        """Number all later requests higher than any that a peer has seen, after records were lost.

        boots: how often the store was started, which is higher than ever before.
        """

    def drop_missing_blobs(self, missing: AbstractSet[bytes]) -> list[str]:
        """Drop state that needs live blobs which the store has lost, before `start`; return the losses, as sentences.

        A blob that can be fetched again is not a loss.
        """

    def start(self, now: float) -> list[Effect]:
        """Resume the work that is unfinished in the replayed state."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Process one event; return the effects, in order."""

    def on_traffic(self, peer: Address, traffic: int, now: float, *, sign_of_life: bool) -> None:
        """Count bytes sent to or received from a node; `sign_of_life`: the node sent something useful."""

    def wake_at(self) -> float | None:
        """The time of the next `TimerFired`, if one is needed."""

    def live(self) -> AbstractSet[bytes]:
        """The digests of all blobs that must be kept."""
