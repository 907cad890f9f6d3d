"""The messages between nodes: frozen, typed, with limits. `docs/protocol.md` describes them in prose.

The messages of operators are in `operator_messages`, `operators`, `mandates` and `release_messages`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec

from sojourn import WIRE
from sojourn.parts import Gate, TourBounds, TourPolicy, Weighting
from sojourn.protocol.limits import (
    Bytes,
    Data,
    Digest,
    Hop,
    Identity,
    Label,
    Leaf,
    Metrics,
    Name,
    Norm,
    Number,
    PublicKey,
    Samples,
    Seconds,
    Signature,
    Steps,
    Text,
)
from sojourn.protocol.mandates import SignedMandate
from sojourn.protocol.registry import FROM_DEVICE, FROM_SITE, OPERATORS, STATE_TOPIC, TO_DEVICE, TO_SITE, Message
from sojourn.protocol.wire import (
    HopEnds,
    HopSignature,
    Offer,
    Ref,
    Task,
    TourId,
    TrainingSize,
    Vectors,
    VisitId,
    VisitReason,
)

MOST_KEYS = 512
"""Maximum number of keys of a tour's devices, since they must fit into its packet."""
BLOBS = TO_DEVICE | FROM_DEVICE | TO_SITE | FROM_SITE | OPERATORS
"""The roles between which blobs are fetched."""
_MessageT = TypeVar("_MessageT", bound=Message)


class Birth(Message, frozen=True, tag="birth"):
    """Retained presence: this node is online."""

    routes = STATE_TOPIC
    offer: Offer | None = None
    wire: Annotated[int, msgspec.Meta(ge=1, le=255)] = WIRE
    """The version of its wire protocol."""


class Death(Message, frozen=True, tag="death"):
    """The MQTT will: the boot named in the envelope is offline."""

    routes = STATE_TOPIC


Presence = Birth | Death


class Fetch(Message, frozen=True, tag="fetch"):
    """Request leaves of a blob that the receiver has offered, as chunks."""

    routes = BLOBS
    digest: Digest
    first: Leaf
    count: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class FetchHashes(Message, frozen=True, tag="fetch-hashes"):
    """Request the hashes of the leaves from this one on, as many as fit."""

    routes = BLOBS
    digest: Digest
    first: Leaf


class Hashes(Message, frozen=True, tag="hashes"):
    """Hashes of consecutive leaves, 32 bytes each."""

    routes = BLOBS
    digest: Digest
    first: Leaf
    hashes: Data


class Chunk(Message, frozen=True, tag="chunk"):
    """Whole consecutive leaves of a blob."""

    routes = BLOBS
    digest: Digest
    first: Leaf
    data: Data


class Gone(Message, frozen=True, tag="gone"):
    """The blob is not available, or was not offered to the receiver."""

    routes = BLOBS
    digest: Digest


class Prepare(Message, frozen=True, omit_defaults=True, tag="prepare"):
    """A visit will follow: fetch the kit and start the worker."""

    routes = TO_DEVICE
    job: Name
    kit: Ref
    task: Task
    mandate: SignedMandate | None = None
    """The mandate that an operator signed for the job, if any."""
    size: TrainingSize | None = None
    """The memory that training needs on the device; None if the sender does not know."""


class Visit(Message, frozen=True, omit_defaults=True, tag="visit"):
    """Train this model, once."""

    routes = TO_DEVICE
    id: VisitId = msgspec.field(name="visit")
    kit: Ref
    vectors: Vectors
    task: Task
    seed: Identity
    lease: Seconds
    earlier: Hop = 0
    """The number of earlier visits of the model on this tour: a first device may have to warm it up."""
    mandate: SignedMandate | None = None
    """The mandate that an operator signed for the job, if any."""
    size: TrainingSize | None = None
    """The memory that training needs on the device; None if the sender does not know."""


class Cancel(Message, frozen=True, tag="cancel"):
    """This attempt is no longer needed."""

    routes = TO_DEVICE
    visit: VisitId


class Accepted(Message, frozen=True, tag="accepted"):
    """The result is stored and counts: commit the state for the job, and delete the result."""

    routes = TO_DEVICE
    visit: VisitId


class Discarded(Message, frozen=True, tag="discarded"):
    """The result does not count: delete it."""

    routes = TO_DEVICE
    visit: VisitId
    reason: Text


class Progress(Message, frozen=True, tag="progress"):
    """A sign of life from a visit."""

    routes = FROM_DEVICE
    visit: VisitId
    stage: Literal["fetching", "training"]
    step: Steps
    steps: Steps


class Declined(Message, frozen=True, tag="declined"):
    """The device refuses this visit."""

    routes = FROM_DEVICE
    visit: VisitId
    reason: VisitReason
    detail: Text


class Visited(Message, frozen=True, omit_defaults=True, tag="visited"):
    """The result of a visit."""

    routes = FROM_DEVICE
    visit: VisitId
    vectors: Vectors
    samples: Samples
    metrics: Metrics
    signature: Signature | None = None
    note: Text = ""
    """A note for the operator about unusual data of the device."""
    signed: HopSignature | None = None
    """The device's signature, if it has its own key (`sojourn.protocol.signing`)."""


class RosterAsk(Message, frozen=True, tag="roster-ask"):
    """Send the roster, even if it was sent before."""

    routes = TO_SITE


class Roster(Message, frozen=True, omit_defaults=True, tag="roster"):
    """The devices that a site has now: a blob with a msgpack list of members."""

    routes = FROM_SITE
    revision: Number
    members: Ref
    abilities: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)] = ()
    """The models whose tours it can lead, in addition to plain ones (`sojourn.protocol.task`)."""


class RosterSeen(Message, frozen=True, tag="roster-seen"):
    """The roster of this revision has arrived."""

    routes = TO_SITE
    revision: Number


class TourSigning(msgspec.Struct, frozen=True, omit_defaults=True):
    """The job's mandate, which an edge server forwards, and the keys of visits' signatures, which it checks."""

    mandate: SignedMandate | None = None
    """The mandate that an operator signed for the job, if any: forwarded with every visit."""
    keys: Annotated[dict[Name, PublicKey], msgspec.Meta(max_length=MOST_KEYS)] = {}
    """The keys with which its devices sign, if they have their own; empty on tours of more devices: then only the
    coordinator checks signatures."""


class Tour(Message, frozen=True, omit_defaults=True, tag="tour"):
    """Lead the model along these devices, one after another."""

    routes = TO_SITE
    id: TourId = msgspec.field(name="tour")
    kit: Ref
    vectors: Vectors
    hops: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=2500)]
    spares: Annotated[tuple[Name, ...], msgspec.Meta(max_length=1000)]
    task: Task
    seed: Identity
    policy: TourPolicy
    gate: Gate
    norms: Annotated[tuple[Norm, ...], msgspec.Meta(max_length=256)]
    merges: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """0: one visit after another. Otherwise all devices train in parallel, and their models are merged this many
    times."""
    weighting: Weighting = "samples"
    """How a merge weighs its models."""
    bounds: TourBounds = TourBounds()
    """Further limits of the tour."""
    signing: TourSigning | None = None
    """The signatures of the job and its visits, if any."""
    size: TrainingSize | None = None
    """The memory that training needs on a device."""

    @property
    def mandate(self) -> SignedMandate | None:
        """The mandate that an operator signed for the job, if any."""
        return self.signing.mandate if self.signing else None

    @property
    def keys(self) -> dict[str, bytes]:
        """The keys with which its devices sign, if the coordinator sent them."""
        return self.signing.keys if self.signing else {}


class TourCancel(Message, frozen=True, tag="tour-cancel"):
    """This attempt of a tour is no longer needed."""

    routes = TO_SITE
    tour: TourId


class TourAccepted(Message, frozen=True, tag="tour-accepted"):
    """The tour's result is stored and counts."""

    routes = TO_SITE
    tour: TourId


class TourDiscarded(Message, frozen=True, tag="tour-discarded"):
    """The tour's result does not count."""

    routes = TO_SITE
    tour: TourId
    reason: Text


class TourProgress(Message, frozen=True, omit_defaults=True, tag="tour-progress"):
    """A sign of life from a tour, with the position of the model."""

    routes = FROM_SITE
    tour: TourId
    hop: Hop
    hops: Hop
    device: Name | None
    step: Steps
    steps: Steps
    lost: Number
    traffic: Bytes
    ends: HopEnds | None = None
    """The outcomes of its hops; None if one after another went as planned."""


class Toured(Message, frozen=True, tag="toured"):
    """The end of a tour: its last checkpoint and a report of every visit, as a blob with a msgpack list."""

    routes = FROM_SITE
    tour: TourId
    vectors: Vectors
    samples: Samples
    reports: Ref
    traffic: Bytes


@cache
def _ref_fields(form: type[Message]) -> tuple[str, ...]:
    """Return the fields of a message that are references, or references by name."""
    fields = msgspec.structs.fields(form)
    return tuple(it.name for it in fields if it.type == Vectors or Ref in (it.type, *get_args(it.type)))


def refs(message: Message) -> list[Ref]:
    """Return the references in a message."""
    found: list[Ref] = []
    for field in _ref_fields(type(message)):
        value = getattr(message, field)
        if type(value) is dict:
            found += value.values()
        elif value is not None:
            found.append(value)
    return found


def map_refs(message: _MessageT, change: Callable[[Ref], Ref]) -> _MessageT:
    """Return the message with every reference changed."""
    changes: dict[str, Any] = {}
    for field in _ref_fields(type(message)):
        value = getattr(message, field)
        if value is not None:
            changes[field] = {k: change(v) for k, v in value.items()} if type(value) is dict else change(value)
    return msgspec.structs.replace(message, **changes) if changes else message
