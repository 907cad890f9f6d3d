"""Every message that travels: frozen, typed, bounded. `docs/protocol.md` describes the same in prose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from sojourn.parts import Encoding, Gate, Objective, TourPolicy, Training

if TYPE_CHECKING:
    from collections.abc import Callable

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]{1,63}\Z")]
Text = Annotated[str, msgspec.Meta(max_length=2000)]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
VectorName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
VisitReason = Literal[
    "busy", "hot", "metered", "hours", "memory", "disk", "data", "runtime", "unsupported", "stale", "gone", "failed"
]
VisitStatus = Literal["done", "declined", "lost", "refused"]
"""How a visit ended: kept, declined by the device, silent past its lease, or stopped by the gate."""
JobStatus = Literal["queued", "compiling", "waiting", "running", "done", "stopped", "refused"]


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """Which boot of a node speaks: a stored counter and eight random bytes."""

    count: Number
    nonce: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]


class Ref(msgspec.Struct, frozen=True, omit_defaults=True):
    """A blob by its digest, how it is encoded, and the blob itself when it is small enough to ride along."""

    digest: Digest
    size: Number
    encoding: Encoding | Literal["raw"] = "raw"
    delta: bool = False
    inline: bytes | None = None


Vectors = Annotated[dict[VectorName, Ref], msgspec.Meta(max_length=16)]


class TourId(msgspec.Struct, frozen=True, array_like=True):
    """One tour of one round; `attempt` is its fencing number."""

    job: Name
    round: Number
    tour: Number
    attempt: Number

    def __str__(self) -> str:
        return f"{self.job} round {self.round} tour {self.tour}"


class VisitId(msgspec.Struct, frozen=True, array_like=True):
    """One visit of one tour; `attempt` fences first by the tour's attempt, then by the visit's own."""

    job: Name
    round: Number
    tour: Number
    hop: Number
    attempt: tuple[Number, Number]

    def __str__(self) -> str:
        return f"{self.job} round {self.round} tour {self.tour} hop {self.hop}"


class Task(msgspec.Struct, frozen=True):
    """What a device is asked to do with the model it is handed."""

    kind: Literal["train", "estimate"]
    training: Training
    objective: Objective
    encoding: Encoding
    threads: Annotated[int, msgspec.Meta(ge=1, le=256)] | None


class Offer(msgspec.Struct, frozen=True):
    """What a device can do."""

    version: Text
    machine: Text
    runtime: Text
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    memory: Number
    objectives: Annotated[tuple[Text, ...], msgspec.Meta(max_length=64)]
    data: Text


class Birth(msgspec.Struct, frozen=True, tag="birth", tag_field="kind"):
    """Retained presence: this node is here."""

    offer: Offer | None = None


class Death(msgspec.Struct, frozen=True, tag="death", tag_field="kind"):
    """The will: the boot named in the envelope is gone."""


class Fetch(msgspec.Struct, frozen=True, tag="fetch", tag_field="kind"):
    """Send me these leaves of a blob you gave me the reference of, as chunks."""

    digest: Digest
    first: Number
    count: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class FetchHashes(msgspec.Struct, frozen=True, tag="fetch-hashes", tag_field="kind"):
    """Send me the hashes of the leaves from this one on, as many as fit."""

    digest: Digest
    first: Number


class Hashes(msgspec.Struct, frozen=True, tag="hashes", tag_field="kind"):
    """Hashes of consecutive leaves, 32 bytes each."""

    digest: Digest
    first: Number
    hashes: bytes


class Chunk(msgspec.Struct, frozen=True, tag="chunk", tag_field="kind"):
    """Whole consecutive leaves of a blob."""

    digest: Digest
    first: Number
    data: bytes


class Gone(msgspec.Struct, frozen=True, tag="gone", tag_field="kind"):
    """I do not have that blob, or it was not given to you."""

    digest: Digest


class Prepare(msgspec.Struct, frozen=True, tag="prepare", tag_field="kind"):
    """A visit is near: fetch the kit and warm the worker."""

    job: Name
    kit: Ref
    task: Task


class Visit(msgspec.Struct, frozen=True, tag="visit", tag_field="kind"):
    """Train this model, once."""

    visit: VisitId
    kit: Ref
    vectors: Vectors
    task: Task
    seed: Number
    lease: Seconds


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
    step: Number
    steps: Number


class Declined(msgspec.Struct, frozen=True, tag="declined", tag_field="kind"):
    """The device will not do this visit."""

    visit: VisitId
    reason: VisitReason
    detail: Text


class Visited(msgspec.Struct, frozen=True, tag="visited", tag_field="kind"):
    """The result of a visit."""

    visit: VisitId
    vectors: Vectors
    samples: Number
    metrics: Annotated[dict[Text, float], msgspec.Meta(max_length=32)]
    signature: Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)] | None = None


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One device of a roster."""

    device: Name
    epoch: Epoch
    offer: Offer | None


class RosterAsk(msgspec.Struct, frozen=True, tag="roster-ask", tag_field="kind"):
    """Tell me your roster, also if you told it before."""


class Roster(msgspec.Struct, frozen=True, tag="roster", tag_field="kind"):
    """Which devices a site has now: a blob with a msgpack list of members."""

    revision: Number
    members: Ref


class RosterSeen(msgspec.Struct, frozen=True, tag="roster-seen", tag_field="kind"):
    """The roster of this revision has arrived."""

    revision: Number


class Tour(msgspec.Struct, frozen=True, tag="tour", tag_field="kind"):
    """Lead the model along these devices, one after another."""

    tour: TourId
    kit: Ref
    vectors: Vectors
    hops: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=2500)]
    spares: Annotated[tuple[Name, ...], msgspec.Meta(max_length=1000)]
    task: Task
    seed: Number
    policy: TourPolicy
    gate: Gate
    norms: Annotated[tuple[float, ...], msgspec.Meta(max_length=256)]


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
    hop: Number
    hops: Number
    device: Name | None
    step: Number
    steps: Number
    lost: Number
    traffic: Number


class Toured(msgspec.Struct, frozen=True, tag="toured", tag_field="kind"):
    """The end of a tour: its last checkpoint and a report of every visit, as a blob with a msgpack list."""

    tour: TourId
    vectors: Vectors
    samples: Number
    reports: Ref
    traffic: Number


class VisitReport(msgspec.Struct, frozen=True):
    """How one attempt of a visit ended; travels inside `Toured.reports`."""

    device: Name
    hop: Number
    status: VisitStatus
    reason: Text
    samples: Number
    norm: float
    metrics: Annotated[dict[Text, float], msgspec.Meta(max_length=32)]
    signature: Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)] | None
    seconds: float


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="kind"):
    """Queue this job; `job` is the text of a job file. Repeating a ticket changes nothing."""

    ticket: Name
    job: Annotated[str, msgspec.Meta(max_length=50_000)]


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
    """Make an ONNX file of a job's newest model."""

    ticket: Name
    job: Name


class TourView(msgspec.Struct, frozen=True):
    """A tour as a person sees it."""

    tour: Number
    site: str
    hops: tuple[str, ...]
    hop: Number
    device: str | None
    step: Number
    steps: Number
    lost: Number
    done: bool


class RoundReport(msgspec.Struct, frozen=True):
    """What a round did."""

    round: Number
    accuracy: float
    loss: float
    tours: Number
    visits: Number
    lost: Number
    traffic: Number
    seconds: float
    quality: dict[str, float]
    failures: tuple[str, ...] = ()


class JobView(msgspec.Struct, frozen=True):
    """A job as a person sees it."""

    job: str
    strategy: str
    model: str
    status: JobStatus
    detail: str
    round: Number
    rounds: Number
    phase: str
    accuracy: float
    devices: Number
    tours: tuple[TourView, ...] = ()
    history: tuple[RoundReport, ...] = ()


class Jobs(msgspec.Struct, frozen=True, tag="jobs", tag_field="kind"):
    """The answer to `inspect`, `submit` and `stop`: the jobs asked about."""

    ticket: Name
    jobs: tuple[JobView, ...]


class Exported(msgspec.Struct, frozen=True, tag="exported", tag_field="kind"):
    """The answer to `export`: the ONNX file as a blob."""

    ticket: Name
    model: Ref
    accuracy: float


class Refused(msgspec.Struct, frozen=True, tag="refused", tag_field="kind"):
    """What an operator asked for cannot be done."""

    ticket: Name
    reason: Annotated[str, msgspec.Meta(max_length=20_000)]


Presence = Birth | Death
Message = (
    Fetch | FetchHashes | Hashes | Chunk | Gone
    | Prepare | Visit | Cancel | Accepted | Discarded | Progress | Declined | Visited
    | RosterAsk | Roster | RosterSeen
    | Tour | TourCancel | TourAccepted | TourDiscarded | TourProgress | Toured
    | Submit | Inspect | Stop | Export | Jobs | Exported | Refused
)  # fmt: skip

BETWEEN: dict[type, frozenset[tuple[str, str]]] = {
    **dict.fromkeys(
        (Fetch, FetchHashes, Hashes, Chunk, Gone),
        frozenset({("device", "edge"), ("edge", "device"), ("edge", "cloud"), ("cloud", "edge"), ("cloud", "cloud")}),
    ),
    **dict.fromkeys((Prepare, Visit, Cancel, Accepted, Discarded), frozenset({("edge", "device")})),
    **dict.fromkeys((Progress, Declined, Visited), frozenset({("device", "edge")})),
    **dict.fromkeys(
        (RosterAsk, RosterSeen, Tour, TourCancel, TourAccepted, TourDiscarded), frozenset({("cloud", "edge")})
    ),
    **dict.fromkeys((Roster, TourProgress, Toured), frozenset({("edge", "cloud")})),
    **dict.fromkeys((Submit, Inspect, Stop, Export, Jobs, Exported, Refused), frozenset({("cloud", "cloud")})),
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
}


def refs(message: Message) -> list[Ref]:
    """The references that a message carries."""
    found: list[Ref] = []
    for field in _REFS.get(type(message), ()):
        value = getattr(message, field)
        found += value.values() if isinstance(value, dict) else [value]
    return found


def map_refs(message: Message, change: Callable[[Ref], Ref]) -> Message:
    """The same message with every reference changed."""
    changes: dict[str, Any] = {}
    for field in _REFS.get(type(message), ()):
        value = getattr(message, field)
        changes[field] = {k: change(v) for k, v in value.items()} if isinstance(value, dict) else change(value)
    return msgspec.structs.replace(message, **changes) if changes else message
