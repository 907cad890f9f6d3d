"""Roles are state machines without I/O: what they are told (events), and what they want done (effects).

A machine opens no socket, reads no clock, starts no thread and touches no file. `sojourn.node.node` performs its
effects in the order given: a record is in the journal before anything that follows it leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from sojourn.about import NOTHING, About
from sojourn.protocol.limits import Digest
from sojourn.protocol.messages import Birth, Death, Message
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch, Offer, Ref

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


class Received(msgspec.Struct, frozen=True):
    """A valid message arrived."""

    sender: Address
    epoch: Epoch
    message: Message


class Present(msgspec.Struct, frozen=True):
    """The retained presence of a node came."""

    node: Address
    epoch: Epoch
    state: Birth | Death
    clash: bool = False
    """Whether two running nodes use this name."""


class NodeRemoved(msgspec.Struct, frozen=True):
    """What the broker kept of a node was cleared: it belongs to the fleet no longer, whether it was here or not."""

    node: Address


class Overheard(msgspec.Struct, frozen=True):
    """A program that is no node wrote to a topic that this node listens to besides its own. Nothing is checked yet."""

    topic: str
    payload: bytes


class Pulled(msgspec.Struct, frozen=True):
    """A blob that was asked for is here."""

    digest: Digest


class PullFailed(msgspec.Struct, frozen=True):
    """A blob cannot be had: its holder has it no more, or this disk is full."""

    digest: Digest
    reason: Literal["gone", "disk"]


class Did(msgspec.Struct, frozen=True):
    """A piece of work ended well."""

    key: str
    outcome: Any


class Doing(msgspec.Struct, frozen=True):
    """A piece of work reports its progress: in steps, or in words for a person."""

    key: str
    step: int
    steps: int
    text: str = ""


class DidNot(msgspec.Struct, frozen=True):
    """Work failed; `detail` is for people.

    reason: from training a `VisitReason`, from all other work the class name of the error (`node/workers.py`).
    """

    key: str
    reason: str
    detail: str


class Told(msgspec.Struct, frozen=True):
    """A program on this machine told something that the role knows how to take."""

    what: Any


class Linked(msgspec.Struct, frozen=True):
    """A link is up, for the first time or again: what was asked in the meantime was not heard."""


class Woke(msgspec.Struct, frozen=True):
    """The time that the machine asked to be woken at has come."""


Event = Received | Present | NodeRemoved | Overheard | Pulled | PullFailed | Did | Doing | DidNot | Told | Linked | Woke


class Send(msgspec.Struct, frozen=True):
    """Send a message, once. Small blobs ride along; the receiver may fetch the others."""

    to: Address
    message: Message


class Append(msgspec.Struct, frozen=True):
    """Write a record to the journal; `sync`, with these blobs, when somebody relies on it after a power cut."""

    record: Any
    sync: bool = False
    blobs: tuple[Digest, ...] = ()


class Keep(msgspec.Struct, frozen=True):
    """Keep a small blob that the machine made itself."""

    digest: Digest
    data: bytes


class Pull(msgspec.Struct, frozen=True):
    """Get a blob from a node; answered by Pulled (at once if it is here) or PullFailed."""

    ref: Ref
    source: Address


class Do(msgspec.Struct, frozen=True):
    """Have work done outside of the machine; answered by Did or DidNot."""

    key: str
    work: Any
    keeps: bool = True
    """Whether it may leave blobs that only its answer names: until then nothing is swept."""


class Undo(msgspec.Struct, frozen=True):
    """Work is no longer wanted; nothing more is heard of it."""

    key: str


class Say(msgspec.Struct, frozen=True):
    """Log a sentence for the person who watches the node, with what it is about for programs that read it.

    level: a `step` of one visit is for programs: people see it with --verbose.
    """

    text: str
    level: Literal["debug", "step", "info", "warning", "error"] = "info"
    about: About = NOTHING


class Announce(msgspec.Struct, frozen=True):
    """Publish this node's birth again: what it offers has changed."""


class Publish(msgspec.Struct, frozen=True):
    """Leave a retained message for programs that are no nodes, at the broker where the nodes of a role are.

    Nothing (`b""`) takes away what was left there.
    """

    role: Role
    topic: str
    payload: bytes


Effect = Send | Append | Keep | Pull | Do | Undo | Say | Announce | Publish


def soonest(*times: float | None) -> float | None:
    """The first of the times at which something is to happen, if anything is."""
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
        """What this node says of itself in its birth."""

    @property
    def watches(self) -> tuple[Role, ...]:
        """The roles whose presence this machine wants to hear of."""

    def role_of(self, sender: str) -> Role | None:
        """The role in which a node of this name may write to us; None for nobody we know."""

    @property
    def record_form(self) -> Any:
        """The union of this machine's records, for reading them back."""

    def restore(self, snapshot: bytes) -> None:
        """Take the durable state from a snapshot."""

    def snapshot(self) -> bytes:
        """The durable state as bytes, from which `restore` goes on."""

    def apply(self, record: Any) -> None:
        """Change the durable state by one record."""

    @property
    def remedy(self) -> str:
        """What may be missing after records were lost, and what a person can do about it."""

    def objection(self, record: Any) -> str | None:
        """Why a record does not follow the state that is here; asked only where another one may be missing."""

    def mend(self, boots: int) -> None:
        """Records were lost: let what is asked of peers from now on be newer than all they have seen.

        boots: how often the store was started, which is more than ever before.
        """

    def do_without(self, missing: AbstractSet[bytes]) -> list[str]:
        """Before `start`: go on without live blobs that are not in the store; returns what was lost, in sentences.

        What can be fetched again is no loss.
        """

    def start(self, now: float) -> list[Effect]:
        """Take up what the replayed state says was under way."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; returns what is to be done about it, in order."""

    def heard(self, peer: Address, traffic: int, now: float, *, spoke: bool) -> None:
        """Bytes went to or came from a node: for counting and, when it spoke, a sign of life."""

    def wake_at(self) -> float | None:
        """When to be woken, if nothing else happens before."""

    def live(self) -> AbstractSet[bytes]:
        """The digests of all blobs that must be kept."""
