"""Operators' requests to a coordinator about devices, visits and jobs, and its answers."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

import msgspec

from sojourn.protocol.limits import (
    Accuracy,
    Bytes,
    Duration,
    FiniteFloat,
    Hop,
    Identity,
    Label,
    LongText,
    Moment,
    Name,
    Number,
    Portion,
    Samples,
    Steps,
    Text,
    check_metrics,
)
from sojourn.protocol.registry import ANY_ROLE, SUBMITTERS, Answer, OperatorRequest
from sojourn.protocol.wire import JobView, Offer, Ref, VisitStatus


class Refused(Answer, frozen=True, tag="refused"):
    """The request was refused."""

    reason: LongText


# Requests about the fleet: devices and their visits, and the answers.
#
# They contain complete data and no text for a terminal: each program formats them itself.

FleetTopic = Literal["devices", "changes", "visits"]
VisitPhase = Literal["estimate", "train"]


class LastVisit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A short description of a device's newest visit."""

    at: Moment
    job: Name
    round: Number
    phase: VisitPhase
    status: VisitStatus
    reason: Text = ""
    """A short reason why it did not count; empty if it did."""


class VisitNow(msgspec.Struct, frozen=True, array_like=True):
    """A device's current visit, as its site last reported it."""

    job: Name
    round: Number
    tour: Number
    hop: Hop
    step: Steps
    steps: Steps


class ReleaseNow(msgspec.Struct, frozen=True, array_like=True):
    """A device's state for a model line."""

    line: Name
    version: Number
    """The version that it serves; 0 for none."""
    state: Label
    detail: Label = ""


class DeviceNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device's current visit, releases and resources."""

    visit: VisitNow | None = None
    releases: Annotated[tuple[ReleaseNow, ...], msgspec.Meta(max_length=20)] = ()
    threads: Number = 0
    memory: Bytes = 0
    objectives: Number = 0
    """The number of objectives that it supports."""


class FleetDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A known device."""

    device: Name
    online: bool
    since: Moment
    """When it went online or offline."""
    first: Moment
    """When it was first seen."""
    site: Name
    """Its current or last site."""
    version: Label
    machine: Label
    visits: Number
    """The number of its successful visits."""
    failed: Number
    """The number of its failed visits."""
    last: LastVisit | None = None
    offer: Offer | None = None
    """Its complete offer, if it is online and was requested by name."""
    doing: DeviceNow = DeviceNow()
    notice: Text = ""
    """What is wrong with the device and how to fix it, if anything."""


class FleetChange(msgspec.Struct, frozen=True):
    """A device went online or offline."""

    at: Moment
    device: Name
    site: Name
    event: Literal["online", "offline"]


class VisitNote(msgspec.Struct, frozen=True):
    """The outcome of a visit, or of one that was planned but never started."""

    at: Moment
    """When its round was closed."""
    job: Name
    round: Number
    phase: VisitPhase
    tour: Number
    hop: Hop
    site: Name
    device: Name
    status: VisitStatus
    reason: Text
    samples: Samples
    seconds: Duration
    loss: FiniteFloat | None = None
    """The loss on the device's own data, as it reported."""


class Fleet(Answer, frozen=True, tag="fleet"):
    """The answer to `inspect-fleet`: a page of the requested entries."""

    version: Label
    """The version of the coordinator."""
    now: Moment
    """The coordinator's clock, with which its times can be compared."""
    devices: Annotated[tuple[FleetDevice, ...], msgspec.Meta(max_length=1000)] = ()
    changes: Annotated[tuple[FleetChange, ...], msgspec.Meta(max_length=1000)] = ()
    visits: Annotated[tuple[VisitNote, ...], msgspec.Meta(max_length=1000)] = ()
    next: Label = ""
    """The value of `after` for the next page; empty on the last."""


class InspectFleet(OperatorRequest[Fleet], frozen=True, omit_defaults=True, tag="inspect-fleet"):
    """Request known devices, their connections, or their visits; the newest first."""

    roles = ANY_ROLE
    about: FleetTopic
    device: Name | None = None
    """Only this device; for `devices` with its complete offer."""
    job: Name | None = None
    """For `visits`: only those of this job."""
    after: Label = ""
    """The previous page's `next`; empty for the first page."""
    since: Identity | None = None
    """For `devices`: only those that changed after this mark of an earlier `changed`."""


class ForgetDevice(OperatorRequest[Fleet], frozen=True, tag="forget-device"):
    """Forget an offline device."""

    roles = SUBMITTERS
    device: Name

    @property
    def subject(self) -> str:
        """The device."""
        return self.device


class Changed(Answer, frozen=True, omit_defaults=True, tag="changed"):
    """The answer to `await-change`: the marks of the last change to the fleet, jobs, releases and audit log.

    Marks only increase, even across restarts of the coordinator.
    """

    mark: Identity
    """The newest mark."""
    now: Moment
    """The coordinator's clock."""
    version: Label
    fleet: Identity
    jobs: Identity
    releases: Identity
    audit: Identity
    devices: Annotated[tuple[FleetDevice, ...], msgspec.Meta(max_length=1000)] | None = None
    """The devices that changed after the mark in the request, if requested; None if they do not fit in one answer and
    must be requested."""


class AwaitChange(OperatorRequest[Changed], frozen=True, omit_defaults=True, tag="await-change"):
    """Answer with `changed` as soon as something has changed after this mark, or after a few seconds without a change.

    With it, a program that displays changes need not poll for everything.
    """

    roles = ANY_ROLE
    since: Identity = 0
    devices: bool = False
    """Whether the answer includes the devices that changed."""


# Requests about jobs, and the answers.

JobFileText = Annotated[str, msgspec.Meta(max_length=50_000)]
"""The text of a job file."""


class Jobs(Answer, frozen=True, tag="jobs"):
    """The answer to `inspect`, `submit`, `stop` and `continue`: the requested jobs."""

    jobs: Annotated[tuple[JobView, ...], msgspec.Meta(max_length=1000)]
    version: Label
    """The coordinator's version."""


class Exported(Answer, frozen=True, tag="exported"):
    """The answer to `export`: the ONNX file as a blob."""

    model: Ref
    accuracy: Accuracy
    round: Number
    """The round of the model."""

    def __post_init__(self) -> None:
        check_metrics(self)


class Submit(OperatorRequest[Jobs], frozen=True, tag="submit"):
    """Queue this job; `job` is the text of a job file. Repeating a ticket changes nothing."""

    roles = SUBMITTERS
    job: JobFileText

    @property
    def subject(self) -> str:
        """The job's name in its file; `?` if there is none."""
        try:
            name = tomllib.loads(self.job).get("name", "?")
        except (tomllib.TOMLDecodeError, RecursionError):
            return "?"
        return name[:63] if isinstance(name, str) else "?"


class Inspect(OperatorRequest[Jobs], frozen=True, tag="inspect"):
    """Request one job, with its history from a round on, or all if none is named."""

    roles = ANY_ROLE
    job: Name | None = None
    since: Number = 0


class Stop(OperatorRequest[Jobs], frozen=True, tag="stop"):
    """Stop a job; its model is kept."""

    roles = SUBMITTERS
    job: Name


class Export(OperatorRequest[Exported], frozen=True, omit_defaults=True, tag="export"):
    """Make an ONNX file of a job's model."""

    roles = ("submitter", "releaser", "owner")
    job: Name
    round: Number | None = None
    """The round of the model; None for the newest."""


class Continue(OperatorRequest[Jobs], frozen=True, omit_defaults=True, tag="continue"):
    """Change a job's total rounds or target; one that is over continues. Answered by `jobs`."""

    roles = SUBMITTERS
    job: Name
    rounds: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None = None
    """The total number of rounds; None: unchanged."""
    target: Portion | None = None
    """The accuracy that ends the job; 0: none; None: unchanged."""
    goal: Label = ""
    """Another metric that ends it, such as `rmse <= 0.5`; it replaces `target`."""
    devices: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None = None
    """How many devices must be online before the first round; None: unchanged."""

    @property
    def subject(self) -> str:
        """The job and its changes."""
        devices = f" devices {self.devices}" if self.devices else ""
        return f"{self.job} {self.rounds or ''}".strip() + devices


class Removed(Answer, frozen=True, tag="removed"):
    """The answer to `remove`: the number and bytes of blobs that no other job uses."""

    job: Name
    blobs: Number
    freed: Bytes


class Remove(OperatorRequest[Removed], frozen=True, tag="remove"):
    """Forget a job that is over, with its models."""

    roles = SUBMITTERS
    job: Name


class JobText(Answer, frozen=True, tag="job-text"):
    """The answer to `read-job`: the current text of the job file."""

    verbatim = True
    job: Name
    text: JobFileText


class ReadJob(OperatorRequest[JobText], frozen=True, tag="read-job"):
    """Request a job's file."""

    roles = ANY_ROLE
    job: Name
