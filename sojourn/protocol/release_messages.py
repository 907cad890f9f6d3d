"""The messages about releases: requests of operators, orders to devices, and their reports."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sojourn.protocol.limits import Identity, Name, Number, Text
from sojourn.protocol.registry import (
    ANY_ROLE,
    FROM_DEVICE,
    FROM_SITE,
    RELEASERS,
    TO_DEVICE,
    TO_SITE,
    Answer,
    Message,
    OperatorRequest,
)
from sojourn.protocol.release import (
    BlobRef,
    Health,
    HealthRules,
    LineView,
    Quantile,
    ReleaseState,
    Share,
    SignedOrder,
    Version,
)
from sojourn.protocol.wire import Ref


class ReleaseMade(Answer, frozen=True, tag="release-made"):
    """The answer to `make-release`."""

    graph: Ref
    card: Ref


class MakeRelease(OperatorRequest[ReleaseMade], frozen=True, tag="make-release"):
    """Make a release of a job's model: its prediction graph and a card."""

    roles = RELEASERS
    job: Name
    line: Name
    version: Version
    encoding: Literal["float32", "int8"] = "float32"
    notes: Text = ""
    max_loss: Share = 0.05
    """The maximum accuracy lost by the encoding: 0.01 is one point. For another main metric: the relative worsening."""
    round: Number | None = None
    """The round of the model; None for the newest."""
    quantile: Quantile | None = None
    """For a reconstruction: the share of a device's own samples below the threshold of anomalies; None: 0.99."""


class Releases(Answer, frozen=True, tag="releases"):
    """The answer to `inspect-releases`, `rollout` and `steer`."""

    lines: Annotated[tuple[LineView, ...], msgspec.Meta(max_length=1000)]


class Rollout(OperatorRequest[Releases], frozen=True, tag="rollout"):
    """Bring a release to the fleet in stages with the order `forward`; `back` is the order that rolls it back."""

    roles = RELEASERS
    forward: SignedOrder
    back: SignedOrder
    graph: Ref
    card: Ref
    stages: Annotated[tuple[Share, ...], msgspec.Meta(min_length=1, max_length=20)]
    rules: HealthRules
    undo: bool = True
    """Whether an unhealthy stage is rolled back at once; otherwise the rollout only halts."""

    @property
    def subject(self) -> str:
        """The release."""
        order = self.forward.read()
        return f"{order.line} {order.version}" if order else "?"


class Steer(OperatorRequest[Releases], frozen=True, tag="steer"):
    """Pause, resume or roll back the rollout of a line."""

    roles = RELEASERS
    line: Name
    action: Literal["pause", "resume", "rollback"]

    @property
    def subject(self) -> str:
        """The line and the action."""
        return f"{self.line} {self.action}"


class InspectReleases(OperatorRequest[Releases], frozen=True, omit_defaults=True, tag="inspect-releases"):
    """Request one model line with its devices, or all lines."""

    roles = ANY_ROLE
    line: Name | None = None
    since: Number | None = None
    """For one line: the number of devices to omit, which were sent before."""


class Ship(Message, frozen=True, tag="ship"):
    """Send this order to these devices of the site, and its goods when they fetch them."""

    routes = TO_SITE
    order: SignedOrder
    graph: Ref | None
    card: Ref | None
    devices: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=400)]


class Release(Message, frozen=True, tag="release"):
    """An order for this device: fetch the goods, try them, serve them."""

    routes = TO_DEVICE
    order: SignedOrder
    graph: Ref | None
    card: Ref | None


class ReleaseReport(Message, frozen=True, tag="release-report"):
    """The device's state for the newest order of a line, and the release's health."""

    routes = FROM_DEVICE
    line: Name
    serial: Identity
    version: Number
    """The version that it serves now; 0 for none."""
    state: ReleaseState
    detail: Text = ""
    health: Health | None = None


class DeviceReport(Message, frozen=True, tag="device-report"):
    """A report of a device of the site."""

    routes = FROM_SITE
    device: Name
    report: ReleaseReport


class CardDetails(Answer, frozen=True, tag="card-details"):
    """The answer to `read-card`: the card and its graph."""

    card: Ref
    graph: BlobRef


class ReadCard(OperatorRequest[CardDetails], frozen=True, tag="read-card"):
    """Request the card of a release that the newest rollout of a line brings, or returns to."""

    roles = ANY_ROLE
    line: Name
    version: Number
