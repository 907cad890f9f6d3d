"""The messages about the fleet: what an operator asks about devices and their visits, and what is answered.

They hold whole data and no text that is made for a terminal: whoever shows them says it in words of their own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.protocol.limits import (
    Bytes,
    Duration,
    Figure,
    Hop,
    Identity,
    Label,
    Moment,
    Name,
    Number,
    Samples,
    Steps,
    Text,
)
from sojourn.protocol.wire import Offer, VisitStatus

FORM = 2
"""The newest form of the answer that there is: since the second, `FleetDevice.doing` is told."""
Form = Annotated[int, msgspec.Meta(ge=1, le=255)]
FleetTopic = Literal["devices", "changes", "visits"]
VisitPhase = Literal["estimate", "train"]


class InspectFleet(msgspec.Struct, frozen=True, tag="inspect-fleet", tag_field="kind"):
    """Tell about the devices that were ever seen, their comings and goings, or their visits; the newest first."""

    ticket: Name
    about: FleetTopic
    device: Name | None = None
    """Only of this one; of `devices` then with all that it offers."""
    job: Name | None = None
    """Of `visits`, only those of this job."""
    after: Label = ""
    """Where the page before ended: what it called `next`; empty for the first page."""
    form: Form = FORM
    """The newest form of the answer that the asker reads."""
    since: Identity | msgspec.UnsetType = msgspec.UNSET
    """Of `devices`, only those that changed after this mark of an earlier `changed`; before 0.9.0 all are told."""


class ForgetDevice(msgspec.Struct, frozen=True, tag="forget-device", tag_field="kind"):
    """Forget a device that is gone."""

    ticket: Name
    device: Name


class LastVisit(msgspec.Struct, frozen=True):
    """The newest visit of a device, in short."""

    at: Moment
    job: Name
    round: Number
    phase: VisitPhase
    status: VisitStatus
    reason: Text | msgspec.UnsetType = msgspec.UNSET
    """Why it did not count, in short; unset where it did, and before 0.9.0."""


class VisitNow(msgspec.Struct, frozen=True, array_like=True):
    """The visit that a device is at, as its site said last."""

    job: Name
    round: Number
    tour: Number
    hop: Hop
    step: Steps
    steps: Steps


class ReleaseNow(msgspec.Struct, frozen=True, array_like=True):
    """Where a device is with a model line."""

    line: Name
    version: Number
    """What it serves; 0 for nothing."""
    state: Label
    detail: Label = ""


class DeviceNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a device does just now, and with what."""

    visit: VisitNow | None = None
    releases: Annotated[tuple[ReleaseNow, ...], msgspec.Meta(max_length=20)] = ()
    threads: Number = 0
    memory: Bytes = 0
    objectives: Number = 0
    """How many it knows."""


class FleetDevice(msgspec.Struct, frozen=True):
    """A device that was seen at least once."""

    device: Name
    here: bool
    since: Moment
    """When it came, or went."""
    first: Moment
    """When it was first seen."""
    site: Name
    """Where it is, or was last."""
    version: Label
    machine: Label
    visits: Number
    """How many of its visits counted."""
    failed: Number
    """How many did not."""
    last: LastVisit | None = None
    offer: Offer | None = None
    """All that it offers, where it is here and was asked for by name."""
    doing: DeviceNow | msgspec.UnsetType = msgspec.UNSET
    """Told to whoever reads the second form of the answer; unset before 0.9.0."""
    notice: Text | msgspec.UnsetType = msgspec.UNSET
    """What is wrong with the device and what to do, if something is."""


class FleetChange(msgspec.Struct, frozen=True):
    """A device came or went."""

    at: Moment
    device: Name
    site: Name
    event: Literal["joined", "left"]


class VisitNote(msgspec.Struct, frozen=True):
    """How a visit ended, or one that was planned and never was."""

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
    loss: Figure | None = None
    """On the device's own data, as it told."""


class Fleet(msgspec.Struct, frozen=True, tag="fleet", tag_field="kind"):
    """The answer to `inspect-fleet`: a page of what was asked about."""

    ticket: Name
    form: Form
    version: Label
    """Of the coordinator."""
    now: Moment
    """What the coordinator's clock says: its times are to be compared with this one."""
    devices: Annotated[tuple[FleetDevice, ...], msgspec.Meta(max_length=1000)] = ()
    changes: Annotated[tuple[FleetChange, ...], msgspec.Meta(max_length=1000)] = ()
    visits: Annotated[tuple[VisitNote, ...], msgspec.Meta(max_length=1000)] = ()
    next: Label = ""
    """What to ask `after` for the next page; empty on the last."""


class AwaitChange(msgspec.Struct, frozen=True, tag="await-change", tag_field="kind"):
    """Answer with `changed` as soon as something has changed after this mark, or after a few seconds all the same.

    For whoever shows what happens: they need not ask for everything again and again. Since 0.9.0.
    """

    ticket: Name
    since: Identity = 0
    devices: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether to tell the devices that changed along with the answer; unset: no."""


class Changed(msgspec.Struct, frozen=True, tag="changed", tag_field="kind"):
    """The answer to `await-change`: at which marks the fleet, the jobs, the releases and the audit log last changed.

    Marks rise, also when a coordinator is started anew.
    """

    ticket: Name
    mark: Identity
    """The newest of them."""
    now: Moment
    """What the coordinator's clock says."""
    version: Label
    fleet: Identity
    jobs: Identity
    releases: Identity
    audit: Identity
    devices: Annotated[tuple[FleetDevice, ...], msgspec.Meta(max_length=1000)] | msgspec.UnsetType = msgspec.UNSET
    """The devices that changed after the mark that was asked with, where that was wanted; unset where they do not fit
    in one answer: they are to be asked for."""
