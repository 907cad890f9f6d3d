"""The messages about the fleet: what an operator asks about devices and their visits, and what is answered.

They hold whole data and no text that is made for a terminal: whoever shows them says it in words of their own.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.protocol.limits import Duration, Figure, Hop, Label, Moment, Name, Number, Samples, Text
from sojourn.protocol.wire import Offer, VisitStatus

FORM = 1
"""The newest form of the answer that there is."""
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


class LastVisit(msgspec.Struct, frozen=True):
    """The newest visit of a device, in short."""

    at: Moment
    job: Name
    round: Number
    phase: VisitPhase
    status: VisitStatus


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
