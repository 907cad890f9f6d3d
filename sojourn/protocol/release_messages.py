"""The messages about releases: what operators ask of the coordinator, and what goes down to devices and up again."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.protocol.limits import Identity, Name, Number, Text
from sojourn.protocol.release import (
    Health,
    HealthRules,
    LineView,
    Parcel,
    Quantile,
    ReleaseState,
    Share,
    SignedOrder,
    Version,
)
from sojourn.protocol.wire import Ref


class MakeRelease(msgspec.Struct, frozen=True, tag="make-release", tag_field="kind"):
    """Make a release of a job's model: its prediction graph and a card."""

    ticket: Name
    job: Name
    line: Name
    version: Version
    encoding: Literal["float32", "int8"] = "float32"
    notes: Text = ""
    max_loss: Share = 0.05
    """How much accuracy the encoding may cost: 0.01 is one point. Of another main figure: which share of it."""
    round: Number | msgspec.UnsetType = msgspec.UNSET
    """Of which round's model; unset: of the newest."""
    quantile: Quantile | msgspec.UnsetType = msgspec.UNSET
    """Of a reconstruction: which share of a device's own samples lies below the threshold of anomalies; unset: 0.99."""


class ReleaseMade(msgspec.Struct, frozen=True, tag="release-made", tag_field="kind"):
    """The answer to `make-release`."""

    ticket: Name
    graph: Ref
    card: Ref


class Rollout(msgspec.Struct, frozen=True, tag="rollout", tag_field="kind"):
    """Bring a release to the fleet in stages, by the order `forward`; `back` undoes it, whoever asks for that."""

    ticket: Name
    forward: SignedOrder
    back: SignedOrder
    graph: Ref
    card: Ref
    stages: Annotated[tuple[Share, ...], msgspec.Meta(min_length=1, max_length=20)]
    rules: HealthRules
    undo: bool = True
    """Whether an ill stage is undone at once; else the rollout only halts."""


class Steer(msgspec.Struct, frozen=True, tag="steer", tag_field="kind"):
    """Pause, resume or undo the rollout of a line."""

    ticket: Name
    line: Name
    action: Literal["pause", "resume", "rollback"]


class InspectReleases(msgspec.Struct, frozen=True, tag="inspect-releases", tag_field="kind"):
    """Tell about one model line with its devices, or about all lines."""

    ticket: Name
    line: Name | None = None
    since: Number | msgspec.UnsetType = msgspec.UNSET
    """Of one line: how many of its devices to leave out, which were told before; before 0.9.0 the first are told."""


class Releases(msgspec.Struct, frozen=True, tag="releases", tag_field="kind"):
    """The answer to `inspect-releases`, `rollout` and `steer`."""

    ticket: Name
    lines: Annotated[tuple[LineView, ...], msgspec.Meta(max_length=1000)]


class Ship(msgspec.Struct, frozen=True, tag="ship", tag_field="kind"):
    """Hand this order to these devices of yours, and its goods when they ask."""

    order: SignedOrder
    graph: Ref | None
    card: Ref | None
    devices: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=400)]


class Release(msgspec.Struct, frozen=True, tag="release", tag_field="kind"):
    """An order for this device: fetch the goods, try them, serve them."""

    order: SignedOrder
    graph: Ref | None
    card: Ref | None


class ReleaseReport(msgspec.Struct, frozen=True, tag="release-report", tag_field="kind"):
    """Where the device is with the newest order of a line, and how the release does."""

    line: Name
    serial: Identity
    version: Number
    """What it serves now; 0 for none."""
    state: ReleaseState
    detail: Text = ""
    health: Health | None = None


class DeviceReport(msgspec.Struct, frozen=True, tag="device-report", tag_field="kind"):
    """What a device of the site reported."""

    device: Name
    report: ReleaseReport


class ReadCard(msgspec.Struct, frozen=True, tag="read-card", tag_field="kind"):
    """Tell the card of a release that the newest rollout of a line brings, or returns to. Since 0.9.0."""

    ticket: Name
    line: Name
    version: Number


class CardTold(msgspec.Struct, frozen=True, tag="card-told", tag_field="kind"):
    """The answer to `read-card`: the card, and which graph it is about."""

    ticket: Name
    card: Ref
    graph: Parcel
