"""Every message that travels: frozen, typed, bounded. `docs/protocol.md` describes the same in prose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from sojourn.parts import Gate, TourBounds, TourPolicy, Weighting
from sojourn.protocol.audit import Audit, InspectAudit
from sojourn.protocol.fleet_messages import AwaitChange, Changed, Fleet, ForgetDevice, InspectFleet
from sojourn.protocol.job_messages import Continue, JobFileText, JobText, ReadJob, Remove, Removed
from sojourn.protocol.limits import (
    Accuracy,
    Bytes,
    Data,
    Digest,
    Hop,
    Identity,
    Label,
    Leaf,
    LongText,
    Metrics,
    Name,
    Norm,
    Number,
    Samples,
    Seconds,
    Signature,
    Steps,
    Text,
    check_figures,
)
from sojourn.protocol.mandate import SignedMandate
from sojourn.protocol.mandate_messages import KitTold, ReadKit, Recall, SignJob, WithdrawJob
from sojourn.protocol.operators import SignedRequest
from sojourn.protocol.release_messages import (
    CardTold,
    DeviceReport,
    InspectReleases,
    MakeRelease,
    ReadCard,
    Release,
    ReleaseMade,
    ReleaseReport,
    Releases,
    Rollout,
    Ship,
    Steer,
)
from sojourn.protocol.signed_hop import HopSignature, PublicKey
from sojourn.protocol.wire import (
    JobView,
    Offer,
    Ref,
    Task,
    TourId,
    TourTold,
    TrainingSize,
    Vectors,
    VisitId,
    VisitReason,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_KEYS = 512
"""Of the devices of one tour: they ride along in the order, which has to fit into a packet."""


class Birth(msgspec.Struct, frozen=True, tag="birth", tag_field="kind"):
    """Retained presence: this node is here."""

    offer: Offer | None = None
    wire: Annotated[int, msgspec.Meta(ge=1, le=255)] | msgspec.UnsetType = msgspec.UNSET
    """The newest version of the wire that it speaks; nodes that know only the first do not say."""


class Death(msgspec.Struct, frozen=True, tag="death", tag_field="kind"):
    """The will: the boot named in the envelope is gone."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch", tag_field="kind"):
    """Send me these leaves of a blob you gave me the reference of, as chunks."""

    digest: Digest
    first: Leaf
    count: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class FetchHashes(msgspec.Struct, frozen=True, tag="fetch-hashes", tag_field="kind"):
    """Send me the hashes of the leaves from this one on, as many as fit."""

    digest: Digest
    first: Leaf


class Hashes(msgspec.Struct, frozen=True, tag="hashes", tag_field="kind"):
    """Hashes of consecutive leaves, 32 bytes each."""

    digest: Digest
    first: Leaf
    hashes: Data


class Chunk(msgspec.Struct, frozen=True, tag="chunk", tag_field="kind"):
    """Whole consecutive leaves of a blob."""

    digest: Digest
    first: Leaf
    data: Data


class Gone(msgspec.Struct, frozen=True, tag="gone", tag_field="kind"):
    """I do not have that blob, or it was not given to you."""

    digest: Digest


class Prepare(msgspec.Struct, frozen=True, tag="prepare", tag_field="kind"):
    """A visit is near: fetch the kit and warm the worker."""

    job: Name
    kit: Ref
    task: Task
    mandate: SignedMandate | msgspec.UnsetType = msgspec.UNSET
    """What an operator signed for the job, where one did."""
    size: TrainingSize | msgspec.UnsetType = msgspec.UNSET
    """What training takes of the device's memory; unset where the sender does not know."""


class Visit(msgspec.Struct, frozen=True, tag="visit", tag_field="kind"):
    """Train this model, once."""

    id: VisitId = msgspec.field(name="visit")
    kit: Ref
    vectors: Vectors
    task: Task
    seed: Identity
    lease: Seconds
    earlier: Hop = 0
    """How many visits the model has had on this tour: a first device may have to warm it up."""
    mandate: SignedMandate | msgspec.UnsetType = msgspec.UNSET
    """What an operator signed for the job, where one did."""
    size: TrainingSize | msgspec.UnsetType = msgspec.UNSET
    """What training takes of the device's memory; unset where the sender does not know."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="kind"):
    """This attempt is no longer wanted."""

    visit: VisitId


class Accepted(msgspec.Struct, frozen=True, tag="accepted", tag_field="kind"):
    """The result is stored and counts: commit what you remember of it, delete the result."""

    visit: VisitId


class Discarded(msgspec.Struct, frozen=True, tag="discarded", tag_field="kind"):
    """The result does not count: forget it."""

    visit: VisitId
    reason: Text


class Progress(msgspec.Struct, frozen=True, tag="progress", tag_field="kind"):
    """A sign of life from a visit."""

    visit: VisitId
    stage: Literal["fetching", "training"]
    step: Steps
    steps: Steps


class Declined(msgspec.Struct, frozen=True, tag="declined", tag_field="kind"):
    """The device will not do this visit."""

    visit: VisitId
    reason: VisitReason
    detail: Text


class Visited(msgspec.Struct, frozen=True, tag="visited", tag_field="kind"):
    """The result of a visit."""

    visit: VisitId
    vectors: Vectors
    samples: Samples
    metrics: Metrics
    signature: Signature | None = None
    note: Text | msgspec.UnsetType = msgspec.UNSET
    """What the operator should know of the device's data, if something is odd about it."""
    signed: HopSignature | msgspec.UnsetType = msgspec.UNSET
    """The device's signature, where it has a key of its own (`sojourn.protocol.statements`); unset before 0.8.0."""


class RosterAsk(msgspec.Struct, frozen=True, tag="roster-ask", tag_field="kind"):
    """Tell me your roster, also if you told it before."""


class Roster(msgspec.Struct, frozen=True, tag="roster", tag_field="kind"):
    """Which devices a site has now: a blob with a msgpack list of members."""

    revision: Number
    members: Ref
    abilities: Annotated[tuple[Label, ...], msgspec.Meta(max_length=64)] | msgspec.UnsetType = msgspec.UNSET
    """Of which models it can lead tours (`sojourn.protocol.abilities`); older edge servers do not say, and know none
    but those without state."""


class RosterSeen(msgspec.Struct, frozen=True, tag="roster-seen", tag_field="kind"):
    """The roster of this revision has arrived."""

    revision: Number


class TourSigning(msgspec.Struct, frozen=True):
    """Who signed the job, and who signs its visits: what an edge server passes on, and what it looks at."""

    mandate: SignedMandate | msgspec.UnsetType = msgspec.UNSET
    """What an operator signed for the job, where one did: passed on with every visit."""
    keys: Annotated[dict[Name, PublicKey], msgspec.Meta(max_length=MOST_KEYS)] | msgspec.UnsetType = msgspec.UNSET
    """With which keys its devices sign, where they have some of their own; unset on tours of more devices: then only
    the coordinator looks."""


class Tour(msgspec.Struct, frozen=True, tag="tour", tag_field="kind"):
    """Lead the model along these devices, one after another."""

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
    """0: one visit after another. Else: all devices at once, merged here, so many times over."""
    weighting: Weighting = "samples"
    """How a merge weighs its models."""
    bounds: TourBounds | msgspec.UnsetType = msgspec.UNSET
    """What bounds the tour besides; unset in what an earlier version sent or wrote."""
    signing: TourSigning | msgspec.UnsetType = msgspec.UNSET
    """Who signed and who signs, where somebody does; unset before 0.8.0. In one field: a map with one entry more would
    begin with other bytes for all tours."""
    size: TrainingSize | msgspec.UnsetType = msgspec.UNSET
    """What training takes of a device's memory."""

    @property
    def mandate(self) -> SignedMandate | msgspec.UnsetType:
        """What an operator signed for the job, if one did."""
        return self.signing.mandate if self.signing else msgspec.UNSET

    @property
    def keys(self) -> dict[str, bytes] | msgspec.UnsetType:
        """With which keys its devices sign, as far as that is told."""
        return self.signing.keys if self.signing else msgspec.UNSET


class TourCancel(msgspec.Struct, frozen=True, tag="tour-cancel", tag_field="kind"):
    """This attempt of a tour is no longer wanted."""

    tour: TourId


class TourAccepted(msgspec.Struct, frozen=True, tag="tour-accepted", tag_field="kind"):
    """The tour's result is stored and counts."""

    tour: TourId


class TourDiscarded(msgspec.Struct, frozen=True, tag="tour-discarded", tag_field="kind"):
    """The tour's result does not count."""

    tour: TourId
    reason: Text


class TourProgress(msgspec.Struct, frozen=True, tag="tour-progress", tag_field="kind"):
    """A sign of life from a tour, and where the model is."""

    tour: TourId
    hop: Hop
    hops: Hop
    device: Name | None
    step: Steps
    steps: Steps
    lost: Number
    traffic: Bytes
    told: TourTold | msgspec.UnsetType = msgspec.UNSET
    """What became of its hops; unset where one after another went as planned, and before 0.9.0."""


class Toured(msgspec.Struct, frozen=True, tag="toured", tag_field="kind"):
    """The end of a tour: its last checkpoint and a report of every visit, as a blob with a msgpack list."""

    tour: TourId
    vectors: Vectors
    samples: Samples
    reports: Ref
    traffic: Bytes


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="kind"):
    """Queue this job; `job` is the text of a job file. Repeating a ticket changes nothing."""

    ticket: Name
    job: JobFileText


class Inspect(msgspec.Struct, frozen=True, tag="inspect", tag_field="kind"):
    """Tell about one job, with its history from a round on, or about all when none is named."""

    ticket: Name
    job: Name | None = None
    since: Number = 0


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="kind"):
    """End a job; what was learnt so far is kept."""

    ticket: Name
    job: Name


class Export(msgspec.Struct, frozen=True, tag="export", tag_field="kind"):
    """Make an ONNX file of a job's model."""

    ticket: Name
    job: Name
    round: Number | msgspec.UnsetType = msgspec.UNSET
    """Of which round; unset: of the newest."""


class Jobs(msgspec.Struct, frozen=True, tag="jobs", tag_field="kind"):
    """The answer to `inspect`, `submit`, `stop` and `continue`: the jobs asked about."""

    ticket: Name
    jobs: Annotated[tuple[JobView, ...], msgspec.Meta(max_length=1000)]
    version: Label | msgspec.UnsetType = msgspec.UNSET
    """The coordinator's version; unset before 0.4.0."""


class Exported(msgspec.Struct, frozen=True, tag="exported", tag_field="kind"):
    """The answer to `export`: the ONNX file as a blob."""

    ticket: Name
    model: Ref
    accuracy: Accuracy
    round: Number | msgspec.UnsetType = msgspec.UNSET
    """Of which round it is the model."""

    def __post_init__(self) -> None:
        check_figures(self)


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="kind"):
    """What an operator asked for cannot be done."""

    ticket: Name
    reason: LongText


Presence = Birth | Death
Message = (
    Fetch | FetchHashes | Hashes | Chunk | Gone
    | Prepare | Visit | Cancel | Accepted | Discarded | Progress | Declined | Visited
    | RosterAsk | Roster | RosterSeen
    | Tour | TourCancel | TourAccepted | TourDiscarded | TourProgress | Toured
    | Submit | Inspect | Stop | Export | Jobs | Exported | Refused
    | Continue | Remove | Removed | ReadJob | JobText
    | InspectFleet | Fleet | AwaitChange | Changed | ForgetDevice
    | MakeRelease | ReleaseMade | Rollout | Steer | InspectReleases | Releases | ReadCard | CardTold
    | Ship | Release | ReleaseReport | DeviceReport
    | ReadKit | KitTold | SignJob | WithdrawJob | Recall
    | SignedRequest | InspectAudit | Audit
)  # fmt: skip

BETWEEN: dict[type, frozenset[tuple[str, str]]] = {
    **dict.fromkeys(
        (Fetch, FetchHashes, Hashes, Chunk, Gone),
        frozenset({("device", "edge"), ("edge", "device"), ("edge", "cloud"), ("cloud", "edge"), ("cloud", "cloud")}),
    ),
    **dict.fromkeys((Prepare, Visit, Cancel, Accepted, Discarded, Release), frozenset({("edge", "device")})),
    **dict.fromkeys((Progress, Declined, Visited, ReleaseReport), frozenset({("device", "edge")})),
    **dict.fromkeys(
        (RosterAsk, RosterSeen, Tour, TourCancel, TourAccepted, TourDiscarded, Ship), frozenset({("cloud", "edge")})
    ),
    **dict.fromkeys((Roster, TourProgress, Toured, DeviceReport), frozenset({("edge", "cloud")})),
    **dict.fromkeys((Submit, Inspect, Stop, Export, Jobs, Exported, Refused), frozenset({("cloud", "cloud")})),
    **dict.fromkeys((Continue, Remove, Removed, ReadJob, JobText), frozenset({("cloud", "cloud")})),
    **dict.fromkeys((InspectFleet, Fleet, AwaitChange, Changed, ForgetDevice), frozenset({("cloud", "cloud")})),
    **dict.fromkeys(
        (ReadKit, KitTold, SignJob, WithdrawJob, SignedRequest, InspectAudit, Audit), frozenset({("cloud", "cloud")})
    ),
    Recall: frozenset({("cloud", "edge"), ("edge", "device")}),
    **dict.fromkeys(
        (MakeRelease, ReleaseMade, Rollout, Steer, InspectReleases, Releases, ReadCard, CardTold),
        frozenset({("cloud", "cloud")}),
    ),
}
"""From which role to which role each kind may go."""


_REFS: dict[type, tuple[str, ...]] = {
    Prepare: ("kit",),
    Visit: ("kit", "vectors"),
    Tour: ("kit", "vectors"),
    Visited: ("vectors",),
    Toured: ("vectors", "reports"),
    Roster: ("members",),
    Exported: ("model",),
    KitTold: ("kit",),
    CardTold: ("card",),
    **dict.fromkeys((ReleaseMade, Rollout, Ship, Release), ("graph", "card")),
}


def refs(message: Message) -> list[Ref]:
    """The references that a message carries."""
    found: list[Ref] = []
    for field in _REFS.get(type(message), ()):
        value = getattr(message, field)
        if type(value) is dict:
            found += value.values()
        elif value is not None:
            found.append(value)
    return found


def map_refs(message: Message, change: Callable[[Ref], Ref]) -> Message:
    """The same message with every reference changed."""
    changes: dict[str, Any] = {}
    for field in _REFS.get(type(message), ()):
        value = getattr(message, field)
        if value is not None:
            changes[field] = {k: change(v) for k, v in value.items()} if type(value) is dict else change(value)
    return msgspec.structs.replace(message, **changes) if changes else message
